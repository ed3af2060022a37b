"""Half messages, and the checks of undecided half messages."""
