"""The command lines of ``cmqd backup``, ``cmqd backup list``, ``cmqd restore`` and ``cmqd clone``; their exit codes."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from cmqd_backup.listing import list_backup
from cmqd_backup.making import Wanted, end_standing_pin, make_run, make_runs
from cmqd_backup.moments import parse_moment, wall_ms
from cmqd_backup.refusals import Refused, sentence_of
from cmqd_backup.restores.restoring import Restoring, restore
from cmqd_backup.stores import open_store
from cmqd_types.units import DURATION, SIZE

OK: Final = 0
REFUSED: Final = 4
"""The same as ``cmqd serve`` with a folder that cannot be opened."""
FAULTY: Final = 8
"""``backup list``: a file of the backup is missing or was cut."""

_BACKUP: Final = """Copy the log of a data folder to a folder or URL. A repeated run copies new files alone.

The command runs where the data folder is, as the user of its broker. It reads the files itself. A broker that runs is
asked to keep them meanwhile, with the key of the admin in the data folder, or that of CMQ_URL. The copy has the
accounts, keys and other secrets of the broker: keep it as safe as the data folder.
"""
_RESTORE: Final = """Make a data folder from a backup: as of its last row, or as of a time.

The log of the new folder has an id of its own. Its broker time goes on from the last row, so that no message expires
because of the time since. Receipt handles that were given later than that row are refused. Keys are those of the
backup: a key that was disabled or deleted since is valid again.
"""
_CLONE: Final = """Make a data folder with the messages that wait in another one, for a test or a laptop.

The clone is written anew, and disarmed: its keys, handles and secrets are new, subscriptions to URLs and schedules are
paused, and their URLs are replaced. It has no deleted messages, leases, audit trail, clients and errors. Bodies and
headers are those of the source, unless they are masked.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = {"restore": _restore_parser, "clone": _clone_parser}.get(given[0] if given else "", _backup_parser)()
    if given[:1] == ["backup"] and given[1:2] == ["list"]:
        parser = _list_parser()
        given = given[1:]
    chosen = parser.parse_args(given[1:])
    try:
        return int(chosen.run(chosen))
    except Refused as refusal:
        _complain(str(refusal))
        return REFUSED
    except OSError as error:
        _complain(sentence_of(error))
        return REFUSED
    except KeyboardInterrupt:
        return 130


def _say(line: str) -> None:
    try:
        # Paths may have bytes that are no text.
        print(line.encode(errors="backslashreplace").decode(), flush=True)
    except BrokenPipeError:
        _discard(sys.stdout)
        _complain("standard output was closed: the work goes on without its report")
    except OSError as error:
        # A full disk, or a terminal that has gone.
        _discard(sys.stdout)
        _complain(f"standard output cannot be written ({error.strerror}): the work goes on without its report")


def _complain(line: str) -> None:
    try:
        print(f"cmqd: {line}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Discard the lines of a stream without a reader; the buffered line would fail again at every flush."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _size(text: str) -> int:
    size = int(text) if text.isdecimal() and len(text) < 20 else SIZE.parse(text)
    if not size:
        raise argparse.ArgumentTypeError(f"write bytes, or a number with a unit: {SIZE.named}")
    return size


def _duration(text: str) -> int:
    """Return milliseconds."""
    duration_ms = DURATION.parse(text)
    if not duration_ms:
        raise argparse.ArgumentTypeError(f"write a number with a unit: {DURATION.named}")
    return duration_ms


def _interval(text: str) -> int:
    """Return the milliseconds of an interval that a broker takes for a standing pin."""
    interval_ms = _duration(text)
    if not 1000 <= interval_ms <= 86_400_000:
        raise argparse.ArgumentTypeError("write an interval of 1s to 24h")
    return interval_ms


def _backup_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cmqd backup",
        description=_BACKUP,
        epilog="'cmqd backup list BACKUP' shows what a backup can restore.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="data folder of the broker, which may run")
    parser.add_argument("--to", required=True, metavar="FOLDER|URL", help="place of the backup; made if it is missing")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--every",
        type=_interval,
        metavar="TIME",
        help="make runs for ever, at this interval (1m). The broker keeps what came between two runs, so that every"
        " time in between can be restored",
    )
    parser.add_argument(
        "--keep", type=_duration, metavar="TIME", help="remove runs that no restore to a time within TIME (7d) needs"
    )
    parser.add_argument(
        "--rate", type=_size, default=0, metavar="SIZE", help="bytes a second, read and written, at most: 50MB"
    )
    parser.add_argument(
        "--without-secrets",
        action="store_true",
        help="leave out accounts.json: a restored folder then has no accounts, keys and secrets of subscriptions, and"
        " no earlier receipt handle is valid",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with the settings of a broker with redundancy: its engine has the accounts",
    )
    kinds.add_argument(
        "--end",
        action="store_true",
        help="make no run: the broker keeps nothing for the runs of this backup any more",
    )
    parser.set_defaults(run=_run_backup)
    return parser


def _run_backup(chosen: argparse.Namespace) -> int:
    store = open_store(chosen.to)
    if Path(store.identity).is_relative_to(os.path.realpath(chosen.data)):
        raise Refused("--to is within the data folder: name a folder outside of it, on another disk")
    wanted = Wanted(
        folder=chosen.data,
        store=store,
        every_ms=chosen.every,
        keep_ms=chosen.keep,
        rate=chosen.rate,
        with_secrets=not chosen.without_secrets,
        config=chosen.config,
    )
    if chosen.end:
        asyncio.run(end_standing_pin(wanted))
        _say("the broker keeps nothing for this backup any more")
        return OK
    if chosen.every is None:
        asyncio.run(make_run(wanted, _say))
        return OK
    asyncio.run(make_runs(wanted, _say, _complain))
    return OK


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cmqd backup list",
        description="Show the times that a backup can restore, its gaps, its size and its newest run.",
        epilog="exit code 8: a file of the backup is missing, has another size, or (--verify) another checksum",
    )
    parser.add_argument("backup", metavar="BACKUP", help="folder or URL of the backup")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--verify", action="store_true", help="read every file, and compare its checksum: a disk may change old files"
    )
    parser.set_defaults(run=_run_list)
    return parser


def _run_list(chosen: argparse.Namespace) -> int:
    is_whole = list_backup(open_store(chosen.backup), as_json=chosen.json, reads_all=chosen.verify, out=_say)
    return OK if is_whole else FAULTY


def _restore_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cmqd restore", description=_RESTORE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backup", metavar="BACKUP", help="folder or URL of the backup")
    parser.add_argument("data", type=Path, metavar="DATA", help="new data folder, missing or empty")
    parser.add_argument(
        "--to-time",
        metavar="TIME",
        help="by the wall clock: 2026-01-31T14:05, ...Z, 14:05 of today, or an age such as 2h. The log is cut after its"
        " last row at or before this time",
    )
    parser.add_argument("--accounts", type=Path, metavar="FILE", help="accounts.json in the place of the backup's")
    parser.set_defaults(run=_run_restore)
    return parser


def _run_restore(chosen: argparse.Namespace) -> int:
    now_ms = wall_ms()
    restore(
        Restoring(
            store=open_store(chosen.backup),
            folder=chosen.data,
            to_ms=None if chosen.to_time is None else parse_moment(chosen.to_time, now_ms),
            accounts=None if chosen.accounts is None else chosen.accounts.read_bytes(),
            now_ms=now_ms,
            out=_say,
            complain=_complain,
        )
    )
    return OK


def _clone_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cmqd clone", description=_CLONE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="data folder, whose broker may run, or a backup: folder or URL"
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="new data folder, missing or empty")
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="QUEUE",
        help="only this queue, by name or ACCOUNT/NAME, without topics; can be repeated",
    )
    parser.add_argument(
        "--since", metavar="TIME", help="only messages that were sent since this time, or age such as 2h"
    )
    hidden = parser.add_mutually_exclusive_group()
    hidden.add_argument("--no-bodies", action="store_true", help="zero bytes of the same size in the place of bodies")
    hidden.add_argument(
        "--mask",
        action="append",
        default=[],
        metavar="PATH",
        help="hide the value at a JSON path ($.card.number) of each body, or of a header; can be repeated. A body"
        " without a value there is replaced whole. Other headers, labels, dedup ids and texts of rejections are left"
        " out",
    )
    parser.set_defaults(run=_run_clone)
    return parser


def _run_clone(chosen: argparse.Namespace) -> int:
    # Here, because the fold of messages needs a library that backups and restores do not.
    from cmqd_backup.cloning.cloning import Cloning, clone

    clone(
        Cloning(
            source=chosen.source,
            folder=chosen.data,
            queues=chosen.queue,
            since_ms=None if chosen.since is None else parse_moment(chosen.since, wall_ms()),
            masks=chosen.mask,
            no_bodies=chosen.no_bodies,
            out=_say,
            complain=_complain,
        )
    )
    return OK
