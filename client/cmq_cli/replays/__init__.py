"""What is behind ``cmq replay``, a room per theme; its options are in :mod:`cmq_cli.commands.replay`."""
