# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""The name of the Celery worker of this process (its option ``-n``), by which the server's lists show its connections.

Celery tells the name in a signal, before the worker connects; processes of its pool inherit the name. Programs without
a worker, such as senders of tasks, have no such name.
"""

from typing import Any

from cmqd_client.client_names import fitting_name

try:
    from celery.signals import celeryd_init
except Exception:
    # kombu is used without Celery, or beside a Celery that cannot be imported: an old one is a SyntaxError.
    celeryd_init: Any = None

_name: str | None = None


def _note(sender: Any = None, **_: Any) -> None:
    global _name
    _name = fitting_name(sender) if isinstance(sender, str) else None


def worker_name() -> str | None:
    """Return the name of the worker; None if the process runs no worker."""
    return _name


if celeryd_init is not None:
    celeryd_init.connect(_note)
