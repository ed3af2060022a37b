"""Modules of the log that run in the loop process, and not in the storage process."""
