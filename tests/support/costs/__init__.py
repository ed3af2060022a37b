"""Costs counted without a clock: lines and calls of Python, sizes of containers in C, calls of patterns."""
