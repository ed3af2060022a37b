"""Limits of a load, apart from the code of the load: the command line names them before any load runs."""

MIN_BODY = 16
"""Smallest body: the mark and a time of ``wire``."""
MAX_DEPTH = 127
"""Requests under way on a connection: their ids take a byte."""
