"""The failure of a run."""


class BenchFailed(Exception):
    """A run cannot go on; the text is a sentence for the command line."""
