"""The data folder of a log: its lock, its identity, its manifest, and its space on the disk."""
