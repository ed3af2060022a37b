"""Commands of ``cmq``, a module per group."""
