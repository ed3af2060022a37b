"""The server of cmqd."""
