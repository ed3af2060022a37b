"""Reads of the log: a plan of tasks, and the tasks as Arrow batches."""
