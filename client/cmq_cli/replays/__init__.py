"""The parts of ``cmq replay``, a module per theme; its options are in :mod:`cmq_cli.commands.log.replay`."""
