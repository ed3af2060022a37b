"""Micro benchmarks: the codec and each operation of the core by itself, to tell a regression from noise."""
