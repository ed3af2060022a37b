"""``python -m cmqd_bench spark``: the Spark connector; a module per part, combined by ``report``."""
