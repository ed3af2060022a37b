"""A clone: the log of a new folder, made from the state of a source. See the package for the order of the steps."""

import secrets
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from cmqd_backup.accounts_content import ACCOUNTS_FILE
from cmqd_backup.backing_up import manifest_upto
from cmqd_backup.cloning.masking import Masking
from cmqd_backup.cloning.new_log import NewLog
from cmqd_backup.cloning.source_rows import read_rows_with
from cmqd_backup.cloning.source_state import NEVER_SERVED, SourceState, fold_source
from cmqd_backup.cloning.sources import held_source, require_source
from cmqd_backup.cloning.waiting import WaitingMessages, WaitingQueue
from cmqd_backup.holds import Held
from cmqd_backup.moments import shown_time
from cmqd_backup.refusals import Refused
from cmqd_backup.restores.targets import WORK, filling, owner_warning, require_empty
from cmqd_segment.manifest import (
    CHECKPOINTS,
    MANIFEST_NAME,
    SEGMENTS,
    Manifest,
    Restored,
    segment_file,
    sync_folder,
    write_manifest,
)
from cmqd_segment.records import DeadLettersFrom, NumbersReserved, ScheduleSet, Subscribed
from cmqd_types.sentences import counted

ADMIN: Final = "admin"
NOWHERE: Final = "http://clone.invalid/"
"""Takes the place of every URL: a name that no resolver knows (RFC 2606). The id of the subscription follows."""


class Cloning(NamedTuple):
    """A clone that was asked for."""

    source: str
    folder: Path
    queues: Sequence[str] = ()
    """Names, or ``account/name``; empty = all queues, topics and schedules."""
    since_ms: int | None = None
    """Wall clock."""
    masks: Sequence[str] = ()
    no_bodies: bool = False
    out: Callable[[str], object] = print
    complain: Callable[[str], object] = print
    """Gets warnings."""


def clone(asked: Cloning) -> None:
    """Make a clone. Raises Refused, OSError."""
    masking = Masking(asked.masks, no_bodies=asked.no_bodies)
    require_empty(asked.folder)
    require_source(asked.source, asked.folder)
    with filling(asked.folder):
        work = asked.folder / WORK
        work.mkdir(mode=0o700)
        for name in (SEGMENTS, CHECKPOINTS):
            (asked.folder / name).mkdir(mode=0o750)
        # Before the source is read, which takes long: a broker refuses a folder with a segment and without a manifest,
        # and would take the folder of a clone that was killed for a new one.
        (asked.folder / segment_file(1)).touch(mode=0o600)
        sync_folder(asked.folder / SEGMENTS)
        with held_source(asked.source, work, asked.complain) as held:
            try:
                lines = _Clone(asked, masking, held).run()
            except FileNotFoundError as missing:
                raise Refused(
                    f"{missing.filename} is missing: the source is damaged, or its broker ended the pin, at its own end"
                    " or for lack of space. Repeat the command"
                ) from None
    warning = owner_warning(asked.folder)
    if warning:
        asked.complain(warning)
    for line in lines:
        asked.out(line)


class _Clone:
    """A clone into an empty folder that is held."""

    def __init__(self, asked: Cloning, masking: Masking, held: Held) -> None:
        self._asked = asked
        self._masking = masking
        self._source = held.folder
        self._manifest = manifest_upto(held)
        mode = stat.S_IMODE((held.folder / MANIFEST_NAME).stat().st_mode)
        self._mode = mode & 0o640 | 0o600
        self._lines: list[str] = []

    def run(self) -> list[str]:
        """Write the folder, its manifest last; return the report. Raises Refused, OSError."""
        folder, source = self._asked.folder, self._manifest
        checkpoint = self._source / source.checkpoints[-1].file if source.checkpoints else None
        segments = [self._source / entry.file for entry in source.segments]
        state = fold_source(checkpoint, segments)
        log_id = secrets.token_hex(16)
        log = NewLog(folder, log_id, state.time_ms, self._mode)
        try:
            self._write(state, segments, log)
            log.close()
        except sqlite3.Error as error:
            raise Refused(f"{folder} cannot be written: {error}") from error
        finally:
            log.abandon()
        self._make_accounts(state)
        # Behind the last read of the source: a restored source is in this folder.
        shutil.rmtree(folder / WORK)
        for name in (SEGMENTS, CHECKPOINTS):
            sync_folder(folder / name)
        sync_folder(folder)
        restored = Restored(log.last_lsn, state.time_ms, 0, is_clone=True)
        manifest = Manifest(
            clean=True, next_number=len(log.entries) + 1, segments=log.entries, log_id=log_id, restored=restored
        )
        write_manifest(folder, manifest, self._mode)
        return [
            *self._lines,
            f"broker time of the clone goes on from {shown_time(state.time_ms)} at its first start",
            f"{folder} is a clone: start a broker with it, or use it in tests",
        ]

    # ------------------------------------------------------------------ the log

    def _write(self, state: SourceState, segments: Sequence[Path], log: NewLog) -> None:
        wanted = self._wanted(state)
        # In the order of ids, and a queue before what names it.
        for number in sorted(wanted | self._dead_letter_queues(state, wanted)):
            log.add(state.queues[number])
        if not self._asked.queues:
            for number in sorted(state.topics):
                log.add(state.topics[number])
            for number in sorted(state.subscriptions):
                log.add(_disarmed(state.subscriptions[number]))
        for number in sorted(state.schedules):
            self._write_schedule(state.schedules[number], state, wanted, log)
        since_ms = 0 if self._asked.since_ms is None else self._asked.since_ms - state.offset_ms
        results = state.results()
        queues = {
            number: WaitingQueue(state.queues[number], results[number], since_ms)
            for number in wanted
            if number in results
        }
        waiting = WaitingMessages(queues, self._masking, log)
        for row in read_rows_with(segments, waiting.is_wanted):
            waiting.take(row)
        self._write_roles(state, queues, wanted, log)
        numbers = state.numbers
        lease = numbers.lease_until
        for queue in queues.values():
            lease = queue.write_receives(lease, state.time_ms, log)
        log.add(NumbersReserved(numbers.message_id_until, lease, numbers.queue_id_until))
        self._report(state, queues)

    def _wanted(self, state: SourceState) -> set[int]:
        """Return the ids of the queues whose messages the clone gets. Raises Refused."""
        if not self._asked.queues:
            return set(state.queues)
        wanted: set[int] = set()
        for name in self._asked.queues:
            found = {
                number for number, each in state.queues.items() if name in (each.name, f"{each.account}/{each.name}")
            }
            if not found:
                raise Refused(f"{self._asked.source} has no queue {name}")
            wanted |= found
        return wanted

    def _dead_letter_queues(self, state: SourceState, wanted: set[int]) -> set[int]:
        """Return the dead-letter queues of the wanted queues, which a queue with that attribute needs."""
        ids = {(each.account, each.name): number for number, each in state.queues.items()}
        named = {(state.queues[each].account, state.queues[each].attributes.dead_letter_queue) for each in wanted}
        return {ids[name] for name in named if name in ids}

    def _write_schedule(self, schedule: ScheduleSet, state: SourceState, wanted: set[int], log: NewLog) -> None:
        targets = {(each.account, each.name): each for each in map(state.queues.__getitem__, wanted)}
        target = targets.get((schedule.account, schedule.queue))
        if self._asked.queues and target is None:
            return
        body = self._masking.body(schedule.body, 0 if target is None else target.attributes.max_message_bytes)
        headers = self._masking.headers(schedule.headers)
        log.add(structs.replace(schedule, paused=True, next_ms=0, body=body, headers=headers), (), len(body))

    def _write_roles(self, state: SourceState, queues: dict[int, WaitingQueue], wanted: set[int], log: NewLog) -> None:
        """Write which queues are dead-letter queues: without the role none of them takes a dead letter."""
        for number in sorted(wanted | self._dead_letter_queues(state, wanted)):
            floor = state.dead_letter_floor(number)
            if floor == NEVER_SERVED:
                continue
            log.add(DeadLettersFrom(number, queues[number].position_of(floor) if floor > 0 and number in queues else 0))
            if floor < 0:
                log.add(DeadLettersFrom(number, -1))

    def _report(self, state: SourceState, queues: dict[int, WaitingQueue]) -> None:
        missing = sum(queue.expected - queue.found for queue in queues.values())
        if missing and not self._manifest.losses:
            messages = counted(missing, "waiting message")
            raise Refused(f"{messages} of {self._asked.source} have no readable row: it is damaged")
        messages = counted(sum(queue.next_position for queue in queues.values()), "message")
        self._lines.append(f"{messages} in {counted(len(queues), 'queue')}, as of row {self._manifest_last()}")
        older = sum(queue.passed_over for queue in queues.values())
        if older:
            self._lines.append(f"left out: {counted(older, 'older message')}")
        if self._masking.replaced:
            self._lines.append(
                f"bodies that were replaced whole: {self._masking.replaced}. A path of --mask finds no value there, or"
                " the hidden values make them longer than their queue takes"
            )
        if missing:
            self._lines.append(f"lost in the source before: {counted(missing, 'message')}")

    def _manifest_last(self) -> int:
        return max((entry.last_lsn for entry in self._manifest.segments), default=0)

    # ------------------------------------------------------------------ accounts

    def _make_accounts(self, state: SourceState) -> None:
        """Let the server's own command make accounts with a new key and a new permutation of handles: this program
        knows no accounts.
        """
        work = self._asked.folder / WORK / "accounts"
        work.mkdir(mode=0o700)
        # As this program was started: without -P a module of the working directory would come before the library's.
        python = [sys.executable, "-P"] if sys.flags.safe_path else [sys.executable]
        command = [*python, "-m", "cmqd", "accounts", "new-key", ADMIN, "--data", str(work)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise Refused(f"accounts cannot be made: {(ended.stdout + ended.stderr).strip()}")
        for name in (ACCOUNTS_FILE, f"{ACCOUNTS_FILE}.1"):
            (work / name).replace(self._asked.folder / name)
        others = {each.account for each in (*state.queues.values(), *state.topics.values())} - {ADMIN}
        if others:
            self._lines.append(
                f"accounts: {ADMIN} alone, with a new key. Create the others to reach their queues: "
                + ", ".join(sorted(others)[:20])
            )


def _disarmed(subscription: Subscribed) -> Subscribed:
    """Return a subscription that sends nothing out of the broker."""
    attributes = subscription.attributes
    if attributes.protocol == "queue":
        return subscription
    endpoint = f"{NOWHERE}{subscription.subscription_id}"
    if attributes.protocol == "https":
        endpoint = endpoint.replace("http:", "https:", 1)
    return structs.replace(subscription, attributes=structs.replace(attributes, endpoint=endpoint, paused=True))
