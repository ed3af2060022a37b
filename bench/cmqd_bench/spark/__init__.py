"""``python -m cmqd_bench spark``: the Spark connector; a module for each part, put together by ``report``."""
