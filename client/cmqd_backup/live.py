"""The folder of a live broker: the broker holds its files by a pin for the time of a copy.

Of the broker the program asks for pins alone. The program connects with the context file in the data folder,
or as ``cmq`` does if CMQ_URL or CMQ_CONTEXT_FILE is set.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Set
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import structs

from cmqd_backup.backing_up import missing_rows
from cmqd_backup.follower import followed_folder, renewed
from cmqd_backup.holds import Held, manifest_of
from cmqd_backup.refusals import Refused
from cmqd_client import Client, connect
from cmqd_client.address import Address
from cmqd_client.contexts import ContextError, find_address, load_contexts
from cmqd_client.errors import CmqError, InvalidArgument, UnknownOperation
from cmqd_client.pins import LogPin
from cmqd_segment.folder_lock import holder_of
from cmqd_segment.manifest import Manifest, SegmentState

CONTEXT_FILE: Final = "admin.context.toml"
_LAST_NUMBER: Final = (1 << 63) - 1


def address_of(folder: Path) -> Address:
    """Return the address of the broker of a folder. Raises Refused."""
    try:
        if os.environ.get("CMQ_URL") or os.environ.get("CMQ_CONTEXT_FILE"):
            return find_address()
        return load_contexts(folder / CONTEXT_FILE, must_exist=True).address(None)
    except (ContextError, ValueError) as error:
        raise Refused(f"a broker works on {folder}, and its address is not known: {error}") from error


def standing_name(place: str) -> str:
    """Return the name of the standing pin of a backup: a part of its place that people know, and a digest."""
    known = re.sub(r"[^A-Za-z0-9_-]+", "-", place.rstrip("/").rpartition("/")[2])[:40].strip("-")
    return f"{known or 'backup'}-{sha256(os.fsencode(place)).hexdigest()[:6]}"


@contextlib.asynccontextmanager
async def connected(folder: Path) -> AsyncGenerator[Client]:
    """Connect with the broker of a folder. Raises Refused for every error of the client."""
    holder = None
    with contextlib.suppress(FileNotFoundError):
        holder = holder_of(folder)
    # Behind the address in the folder is no broker then: an attempt to connect would wait.
    if holder is None:
        raise Refused(f"no broker works on {folder}. Another program may read its files: repeat the command after it")
    if holder.program:
        raise Refused(f"{folder} is in use by {holder}: repeat the command when it has ended")
    address = address_of(folder)
    try:
        async with connect(address, product="cmqd-backup") as client:
            yield client
    except UnknownOperation as error:
        raise Refused(
            f"the broker of {folder}, or the leader in its place, knows no pins, as an earlier version: {error}"
        ) from error
    except CmqError as error:
        raise Refused(f"the broker of {folder} refused: {error}") from error


@contextlib.asynccontextmanager
async def pinned_folder(client: Client, folder: Path) -> AsyncGenerator[tuple[Held, LogPin]]:
    """Hold the files of a copy. Raises Refused, CmqError."""
    pin = await client.pins.make()
    extending = asyncio.create_task(_extend(client, pin))
    try:
        numbers: set[int] = set()
        after: int | None = 0
        while after is not None:
            page = await client.pins.segments(pin.pin_id, after=after)
            numbers.update(page.numbers)
            after = page.next
        manifest = await asyncio.to_thread(manifest_of, folder)
        if pin.log_id != manifest.log_id:
            raise Refused(
                f"the broker that was asked has log {pin.log_id}, and {folder} has log {manifest.log_id}: do CMQ_URL or"
                " CMQ_CONTEXT_FILE name another broker?"
            )
        sealed = [entry for entry in manifest.segments if entry.state is SegmentState.SEALED]
        held = held_by(pin, numbers, folder, manifest)
        if manifest.cache_of is None:
            if not numbers <= {entry.number for entry in sealed}:
                raise Refused(f"{folder} is not the folder of the broker that was asked")
            yield held, pin
        # A segment of a standby that is not among the numbers of the leader is no sign of a drop.
        elif numbers == {entry.number for entry in sealed if entry.last_lsn <= held.last_lsn} and not missing_rows(
            held
        ):
            yield held, pin
        else:
            # The addresses of a pair lead to the leader from both machines. Numbers of segments are each broker's own.
            async with followed_folder(folder, pin) as followed:
                yield followed._replace(renew=partial(renewed, folder, pin)), pin
    finally:
        extending.cancel()
        await asyncio.gather(extending, return_exceptions=True)
        with contextlib.suppress(CmqError):
            await client.pins.release(pin.pin_id)


def held_by(pin: LogPin, numbers: Set[int], folder: Path, manifest: Manifest) -> Held:
    """Return the files that a pin holds: its segments and its checkpoint alone.

    The other checkpoints of the manifest are replaced while the copy is made. Another sealed segment with such rows is
    about to be dropped: the drop was decided before the pin.
    """
    segments = [entry for entry in manifest.segments if entry.number in numbers]
    # The newest segment may have rows behind the row of the pin: these are durable and whole too.
    last_lsn = max([pin.lsn, *(entry.last_lsn for entry in segments)])
    manifest = structs.replace(
        manifest,
        segments=[
            entry if entry.number in numbers else structs.replace(entry, state=SegmentState.DROPPING)
            for entry in manifest.segments
            if entry.state in (SegmentState.SEALED, SegmentState.DROPPING) and entry.last_lsn <= last_lsn
        ],
        checkpoints=[entry for entry in manifest.checkpoints if entry.number == pin.checkpoint],
    )
    return Held(folder, manifest, last_lsn)


async def _extend(client: Client, pin: LogPin) -> None:
    """Extend the life of a pin until cancelled. A pin that has ended shows by a missing file, if at all."""
    with contextlib.suppress(InvalidArgument):
        while True:
            await asyncio.sleep(pin.lifetime.total_seconds() / 4)
            await client.pins.segments(pin.pin_id, after=_LAST_NUMBER, limit=1)
