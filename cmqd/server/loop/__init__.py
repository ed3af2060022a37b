"""The event loop: timers, I/O batches, tasks, and broker time."""
