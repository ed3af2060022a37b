"""The Python client of cmqd."""
