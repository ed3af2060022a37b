"""Counters and status of the server."""
