"""Commands for queues, their dead letters, rewinds, and half messages."""
