"""Sends: checks, repeats, schedules, and the messages at the end of a queue."""
