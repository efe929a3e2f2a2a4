"""Who says whether a completion is right."""
