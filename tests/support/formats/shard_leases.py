"""A folder of shard 5 with leases from before leases had the shard in their upper bits.

``python -m support.formats.shard_leases TARGET`` (from ``tests/``) wrote ``leases-2.tar.xz`` once, with the code of
format 2. The archive holds a data folder with six messages and three leases that run beyond the crash, and the receipt
handles.
"""

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec

from cmqd_protocol import messages as wire
from support.formats.broker import open_folder
from support.formats.content import BEGIN_MS, HOUR_MS

ARCHIVE = Path(__file__).parents[2] / "formats" / "leases-2.tar.xz"
SHARD = 5


async def make(target: Path) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        folder.mkdir()
        rig = await open_folder(folder, BEGIN_MS, shard=SHARD)
        client = await rig.client()
        # Writes the accounts, which have the key of the handles.
        await rig.answer(client, wire.CreateAccount(client.next_id(), "shop"))
        await rig.answer(client, wire.CreateQueue(client.next_id(), "orders", {}))
        bodies = [b"%d" % number for number in range(6)]
        await rig.answer(client, wire.SendMessages(client.next_id(), "orders", bodies))
        received = await rig.answer(client, wire.ReceiveMessages(client.next_id(), "orders", 3, 0, HOUR_MS))
        assert isinstance(received, wire.MessagesReceived)
        await rig.kill()
        handles = Path(place) / "handles.json"
        handles.write_bytes(msgspec.json.encode([message.receipt_handle for message in received.messages]))
        with tarfile.open(target / ARCHIVE.name, "w:xz") as tar:
            tar.add(folder, "data")
            tar.add(handles, "handles.json")


def unpack_leases(target: Path) -> tuple[Path, list[int]]:
    """Unpack the folder below ``target``; returns the folder and the receipt handles of its leases."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(target, filter="tar")
    return target / "data", msgspec.json.decode((target / "handles.json").read_bytes(), type=list[int])


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
