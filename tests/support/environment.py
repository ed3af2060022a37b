"""The environment for the processes of a test."""

import os


def plain_environment() -> dict[str, str]:
    """Return this process's environment without settings of the broker and of the tests themselves.

    A broker refuses a variable that looks like a setting and is none, as those that ask a test for more rounds.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("CMQD_")}
