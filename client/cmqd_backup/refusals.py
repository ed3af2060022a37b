"""The error of a backup, restore or clone that cannot be made, and the sentence of an error of the system."""


class Refused(Exception):
    """A backup, restore or clone was not made; the text is a sentence for the operator."""


def sentence_of(error: OSError) -> str:
    """Return an error of the system without its number: the file, and the reason."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"
