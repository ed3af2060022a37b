"""The machine under a run: its conditions, the broker and other processes with their costs, the disk alone."""
