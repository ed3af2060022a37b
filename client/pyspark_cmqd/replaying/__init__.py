"""Replay with Spark: a part of the log is sent again, in slices, with a journal."""
