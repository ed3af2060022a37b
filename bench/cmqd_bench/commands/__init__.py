"""Command lines of ``python -m cmqd_bench``: plans of commands, and flags made from the fields of plans."""
