"""The command line of ``python -m cmqd_bench``: a plan for each command, from whose fields the flags are made."""
