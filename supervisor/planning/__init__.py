"""What will happen before it does: does a run fit, what does it need, and which relief would make it fit."""
