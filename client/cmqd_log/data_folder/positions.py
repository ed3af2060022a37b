"""Positions in a log that identify the log. Pure.

A position is a row, the id of the log, and the number of the broker's start that wrote the row. A row number alone is
not enough: a different log, or a folder that was restored from an older copy and has grown since, has a row with the
same number, and a reader that continued there would silently leave out messages.
"""

import logging

from cmqd_log.data_folder.plan import View
from cmqd_log.errors import OtherLogError
from cmqd_segment.manifest import start_of

Offset = dict[str, int | str]
"""``lsn``, ``log_id`` and ``start``; the latter two are missing in offsets of earlier versions, and of folders that no
later version has opened."""

_log = logging.getLogger("cmqd_log")


def offset_at(view: View, lsn: int) -> Offset:
    """Return the position behind a row."""
    if not view.log_id:
        return {"lsn": lsn}
    return {"lsn": lsn, "log_id": view.log_id, "start": start_at(view, lsn)}


def start_at(view: View, lsn: int) -> str:
    """Return the number of the start that wrote a row; empty for rows to come, which any start may write."""
    return start_of(view.starts, lsn) if lsn <= view.hi else ""


def check_position(view: View, lsn: int, log_id: str, start: str, path: str) -> bool:
    """Check that a position is of this log; False if the position does not tell.

    Raises:
        OtherLogError: the position belongs to another log, or to rows that the log no longer has.
    """
    if not log_id:
        return False
    if log_id != view.log_id:
        present = f"log {view.log_id}" if view.log_id else "a log without an id"
        raise OtherLogError(f"the position at row {lsn} belongs to log {log_id}, and {path} holds {present}")
    now = start_at(view, lsn)
    if start and now and start != now:
        first = next(entry.first_lsn for entry in view.starts if entry.number == now)
        raise OtherLogError(
            f"row {lsn} of {path} is not the row that was read: the folder was restored from an older copy,"
            f" and the broker has written its rows from {first} on again"
        )
    return True


def check_offset(view: View, offset: Offset, path: str) -> bool:
    """Check an offset of a stream as :func:`check_position` does, and log a warning if it does not name its log.

    Raises:
        OtherLogError: the offset belongs to another log, or to rows that the log no longer has.
    """
    lsn = int(offset["lsn"])
    is_proven = check_position(view, lsn, str(offset.get("log_id", "")), str(offset.get("start", "")), path)
    if not is_proven and view.log_id and lsn:
        _log.warning(
            "the position at row %s names no log, because an earlier version of cmqd wrote the position;"
            " it is used as a position of %s, log %s",
            lsn,
            path,
            view.log_id,
        )
    return is_proven
