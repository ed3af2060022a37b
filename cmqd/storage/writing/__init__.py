"""Writes of the storage process: commits in a thread of their own; seals and checkpoints beside them."""
