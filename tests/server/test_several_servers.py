"""Several servers in a process: broker, log, accounts and clients are separate."""

from pathlib import Path

from cmqd_protocol import messages as wire
from support.server.server_rig import ServerRig, code_of


async def test_servers_of_a_process_share_no_queues_numbers_or_clients(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = await ServerRig.make(tmp_path / "one"), await ServerRig.make(tmp_path / "two")
    to_one, to_two = await one.client(), await two.client()

    await to_one.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    assert code_of(await to_two.ask(wire.SendMessages, "jobs", [b"lost"])) == "queue_not_found"

    await to_two.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    first_ids = await to_one.send("jobs", b"of one"), await to_two.send("jobs", b"of two")
    assert first_ids[0] == first_ids[1], "each numbers its own messages"
    assert [message.body for message in await to_two.receive("jobs")] == [b"of two"]
    assert (await to_one.counts("jobs"))["active"] == 1

    one.check()
    one.close()

    ids = await to_two.send("jobs", b"after one was closed")
    assert [received.message_id for received in await to_two.receive("jobs")] == ids
    two.check()
    two.close()
