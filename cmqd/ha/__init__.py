"""Commands of an operator on redundancy: ``cmqd ha``. A command is a module, registered in ``commands``."""
