"""Logs that tests back up and restore."""
