"""The environment for the processes of a test."""

import os


def plain_environment() -> dict[str, str]:
    """Return the environment of this process without settings of the broker and of the tests themselves.

    A broker refuses an unknown variable that looks like a setting, for example ``CMQD_KILL_ROUNDS``.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("CMQD_")}


def broker_environment() -> dict[str, str]:
    """Return an environment for a broker with more patience with its disk and its clients than a slow machine needs.

    A test of the patience itself passes a flag; flags overrule the environment.
    """
    return {**plain_environment(), "CMQD_STORAGE_PATIENCE_MS": "600000", "CMQD_DRAIN_TIMEOUT_MS": "60000"}
