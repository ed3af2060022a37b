"""Which server has a queue or topic, and what the welcome says about shard and epoch."""

from pathlib import Path

import pytest

from cmqd.core.facts.numbers import NumbersUsedUp
from cmqd_protocol import messages as wire
from support.server.server_rig import ServerRig, a_queue, code_of
from support.server.topics import a_topic


async def test_a_server_that_is_alone_has_every_queue_and_topic_at_the_address_it_reports(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, advertise="mq.example.com:5681")
    client = await rig.client()
    await a_queue(client, "orders")
    await a_topic(client, "events")

    queue = await client.expect(wire.Located, wire.Locate, "orders")
    topic = await client.expect(wire.Located, wire.Locate, "events", True)

    assert (queue.addresses, queue.shard, queue.epoch) == (["mq.example.com:5681"], 0, 0)
    assert topic.addresses == queue.addresses
    assert code_of(await client.ask(wire.Locate, "events")) == "queue_not_found"
    assert code_of(await client.ask(wire.Locate, "orders", True)) == "topic_not_found"
    assert client.opened is not None
    assert (client.opened.facts.shard, client.opened.facts.epoch) == (0, 0)
    rig.close()


@pytest.mark.parametrize("shard", [3, 4095])
async def test_the_shard_is_a_setting_and_part_of_every_message_id(tmp_path: Path, shard: int) -> None:
    rig = await ServerRig.make(tmp_path, shard=shard)
    client = await rig.client()
    await a_queue(client, "orders")

    located = await client.expect(wire.Located, wire.Locate, "orders")
    sent = await client.expect(wire.MessagesSent, wire.SendMessages, "orders", [b"x"])

    assert located.shard == shard
    assert client.opened is not None
    assert client.opened.facts.shard == shard
    assert [message_id >> 52 for message_id in sent.message_ids] == [shard]
    rig.close()


async def test_a_broker_without_message_ids_ends_and_answers_nothing(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    client = await rig.client()
    await a_queue(client, "orders")
    numbers = rig.broker.facts.numbers
    numbers.next_message_id = numbers.message_id_until = 1 << 52

    sending = client.begin(wire.SendMessages(client.next_id(), "orders", [b"x"]))
    await rig.turn()

    assert sending not in client.replies
    (failure,) = rig.failures
    assert isinstance(failure, NumbersUsedUp)
    rig.close()
