"""Disk, and only disk: the log, its segments and recovery."""
