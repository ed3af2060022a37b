"""Micro benchmarks: the codec and every operation of the core in isolation, to tell a regression from noise."""
