"""The operations that do more than call the core and answer; the others are lines of ``operations``."""
