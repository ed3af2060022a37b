"""The commands of ``cmq``, a module for each group."""
