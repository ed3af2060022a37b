"""Upkeep of the log: checkpoints, reclamation of segments, and the watch over a storage that hangs."""
