"""Outcomes beside the segments: how messages left by rows that will be reclaimed."""
