"""The load harness and micro benchmarks of cmqd; not shipped."""
