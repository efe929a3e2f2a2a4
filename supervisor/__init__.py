"""The supervisor: launches a trainer, knows why it died, relieves, relaunches, and says so."""
