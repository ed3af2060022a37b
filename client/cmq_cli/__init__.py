"""The command line cmq."""
