"""Commands for the log: segments, replay, and reconciliation."""
