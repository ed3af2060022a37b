"""The error of a backup or restore that cannot be made."""


class Refused(Exception):
    """A backup or restore was not made; the text is a sentence for the operator."""
