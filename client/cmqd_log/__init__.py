"""The log of cmqd as Arrow: plans of a read, and batches of messages. Needs neither Spark nor Java, nor a broker.

    import cmqd_log

    cmqd_log.scan("data", ["queue", "msg_id", "body"], queue="orders").read_all()

The package imports its parts on first use, because the modules without pyarrow serve other packages too.
"""

# pyarrow tells pyright little of its types.
# pyright: reportUnknownVariableType=false

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmqd_log.scanning import plan, read, scan

__all__ = ["plan", "read", "scan"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from cmqd_log import scanning
    except ImportError as error:
        raise ImportError(f"cmqd_log.{name} needs the extra cmqd[log]: {error}", name=error.name) from error
    return getattr(scanning, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
