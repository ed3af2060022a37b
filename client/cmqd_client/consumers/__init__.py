"""One consumer: its handler, options and decisions, and the receives, leases and deletes of its messages."""
