"""Publishes of several clients within an I/O batch are decided in a single call per topic."""

from collections.abc import Sequence

import pytest

from cmqd.core.operations.topics.publish_plan import PublishPlan
from cmqd.core.outcome import PublishRequest
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState
from cmqd.server.monitoring.counters import Counters
from cmqd.server.requests import collecting
from cmqd_protocol import messages as wire
from cmqd_types.actors import Actor
from support.server.server_rig import ServerRig, code_of
from support.server.topics import a_topic, to_queue


def note_publishes(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[list[bytes]]]]:
    """The publishes that reach the core: topic, and the bodies of the requests; an entry per call."""
    calls: list[tuple[str, list[list[bytes]]]] = []
    real = rig.broker.plan_publish

    def noting(
        account: str, topic: str, requests: Sequence[PublishRequest], now_ms: int, actors: Sequence[Actor]
    ) -> PublishPlan:
        calls.append((topic, [request.bodies for request in requests]))
        return real(account, topic, requests, now_ms, actors)

    monkeypatch.setattr(rig.broker, "plan_publish", noting)
    return calls


class TestCollecting:
    async def test_publishes_of_several_clients_are_one_call_and_one_row(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = [await rig.client() for _ in range(3)]
        await a_topic(clients[0], max_message_bytes=1024)
        await to_queue(clients[0], "jobs")
        calls = note_publishes(rig, monkeypatch)
        lsn = rig.log.last_lsn
        bodies = [b"one", bytes(1025), b"three"]

        ids = [
            client.begin(wire.PublishMessages(client.next_id(), "news", [body]))
            for client, body in zip(clients, bodies, strict=True)
        ]
        assert calls == [], "nothing is decided before the I/O batch ends"
        for client in clients:
            await client.settle()

        assert calls == [("news", [[body] for body in bodies])]
        assert rig.log.last_lsn == lsn + 1
        one, two, three = (client.replies[request_id] for client, request_id in zip(clients, ids, strict=True))
        assert isinstance(one, wire.MessagesPublished)
        assert isinstance(three, wire.MessagesPublished)
        assert code_of(two) == "message_too_large"
        assert [message.body for message in await clients[0].receive("jobs")] == [b"one", b"three"]
        assert rig.server.part(Counters).published == 2

    async def test_a_missing_topic_is_told_to_each(self, rig: ServerRig) -> None:
        clients = [await rig.client() for _ in range(2)]

        ids = [client.begin(wire.PublishMessages(client.next_id(), "nowhere", [b"x"])) for client in clients]
        for client in clients:
            await client.settle()

        assert [code_of(client.replies[request_id]) for client, request_id in zip(clients, ids, strict=True)] == [
            "topic_not_found"
        ] * 2

    async def test_a_client_sees_its_own_publishes(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        client = await rig.client()
        await a_topic(client)
        await to_queue(client, "jobs")
        calls = note_publishes(rig, monkeypatch)

        requests = [
            wire.PublishMessages(client.next_id(), "news", [b"one"]),
            wire.PublishMessages(client.next_id(), "news", [b"two"]),
            wire.ReceiveMessages(client.next_id(), "jobs", 16, 0),
            wire.PublishMessages(client.next_id(), "news", [b"three"]),
            wire.Unsubscribe(client.next_id(), "news", "jobs"),
            wire.PublishMessages(client.next_id(), "news", [b"four"]),
        ]
        for request in requests:
            client.machine.send(request)
        await client.settle()

        assert calls == [("news", [[b"one"], [b"two"]]), ("news", [[b"three"]]), ("news", [[b"four"]])]
        received = client.replies[requests[2].request_id]
        assert isinstance(received, wire.MessagesReceived)
        assert [message.body for message in received.messages] == [b"one", b"two"]
        matched = [getattr(client.replies[requests[at].request_id], "matched", None) for at in (0, 1, 3, 5)]
        assert matched == [[1], [1], [1], [0]]
        assert list(client.replies) == [request.request_id for request in requests]

    async def test_publishes_of_one_client_to_two_topics_keep_their_order(self, rig: ServerRig) -> None:
        client = await rig.client()
        for topic in ("one", "two"):
            await a_topic(client, topic)
            await to_queue(client, "jobs", topic)

        for number, topic in enumerate(("one", "two", "two", "one", "one", "two")):
            client.machine.send(wire.PublishMessages(client.next_id(), topic, [b"%d" % number]))
        await client.settle()

        assert [message.body for message in await client.receive("jobs")] == [b"%d" % number for number in range(6)]

    async def test_requests_of_other_clients_do_not_wait(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = await rig.client(), await rig.client()
        await a_topic(one)
        await to_queue(one, "jobs")
        calls = note_publishes(rig, monkeypatch)

        one.begin(wire.PublishMessages(one.next_id(), "news", [b"x"]))
        two.begin(wire.SendMessages(two.next_id(), "jobs", [b"y"]))

        assert calls == []
        await one.settle()
        assert [message.body for message in await one.receive("jobs")] == [b"y", b"x"]

    @pytest.mark.parametrize(
        ("count", "size", "together"), [(1, 10, 256), (100, 10, 2), (1, 400_000, 2), (1, 1_048_576, 1), (256, 10, 1)]
    )
    async def test_no_more_is_collected_than_a_batch_may_be(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch, count: int, size: int, together: int
    ) -> None:
        client = await rig.client()
        await a_topic(client, max_message_bytes=1_048_576)
        await to_queue(client, "jobs")
        calls = note_publishes(rig, monkeypatch)

        for _ in range(together + 1):
            client.machine.send(wire.PublishMessages(client.next_id(), "news", [bytes(size)] * count))
        client.deliver()
        rig.give_turns()
        assert [len(requests) for _, requests in calls] == [together] * (1 + (together == 1))
        await client.settle()

        assert sum(len(requests) for _, requests in calls) == together + 1
        assert len(client.replies) == together + 1
        assert collecting.MAX_MESSAGES == 256

    async def test_headers_count_as_bodies_do(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        client = await rig.client()
        await a_topic(client)
        calls = note_publishes(rig, monkeypatch)
        headers: list[dict[str, str] | None] = [{"h" * 100: "v" * 16_000}]

        for _ in range(70):
            client.machine.send(wire.PublishMessages(client.next_id(), "news", [b"x"], headers))
        await client.settle()

        assert [len(requests) for _, requests in calls] == [65, 5]

    async def test_a_client_that_goes_has_published(self, rig: ServerRig) -> None:
        one, two = await rig.client(), await rig.client()
        await a_topic(one)
        await to_queue(one, "jobs")

        two.begin(wire.PublishMessages(two.next_id(), "news", [b"x"]))
        two.transport.lose()
        await rig.turn()

        assert [message.body for message in await one.receive("jobs")] == [b"x"]

    async def test_a_publish_is_too_late_to_cancel(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)

        request_id = client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"]))
        client.cancel(request_id)
        await client.settle()

        assert isinstance(client.replies[request_id], wire.MessagesPublished)

    async def test_what_is_collected_when_the_storage_fails_is_unknown(self, rig: ServerRig) -> None:
        # Two clients: the publish of a lone client would be decided before the failure is known.
        clients = [await rig.client() for _ in range(2)]
        await a_topic(clients[0])

        ids = [client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"])) for client in clients]
        rig.log.fail(LogFailed("fsync: I/O error"))
        for client in clients:
            await client.settle()

        told = [code_of(client.replies[request_id]) for client, request_id in zip(clients, ids, strict=True)]
        assert told == ["outcome_unknown"] * 2

    async def test_a_bug_in_the_core_leaves_all_of_them_unknown(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = [await rig.client() for _ in range(2)]
        await a_topic(clients[0])

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(rig.broker, "plan_publish", broken)
        ids = [client.begin(wire.PublishMessages(client.next_id(), "news", [b"x"])) for client in clients]
        for client in clients:
            await client.settle()

        for client, request_id in zip(clients, ids, strict=True):
            assert code_of(client.replies[request_id]) == "outcome_unknown"
        assert [type(failure) for failure in rig.failures] == [ZeroDivisionError]

    async def test_a_storage_that_is_behind_makes_publishes_busy(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client, max_message_bytes=1_048_576)
        await to_queue(client, "jobs")
        rig.log.hold()
        for _ in range(66):
            client.begin(wire.PublishMessages(client.next_id(), "news", [bytes(1_000_000)]))
            await rig.turn()
        await rig.wait_for_disk()
        for _ in range(4):
            client.begin(wire.PublishMessages(client.next_id(), "news", [bytes(1_048_576)]))
            await rig.turn()
        assert rig.log.pending.bytes >= 64 * 1_048_576

        refused = await client.expect(wire.Error, wire.PublishMessages, "news", [b"x"])
        rig.log.let_go()

        assert (refused.name, refused.retryable) == ("busy", True)

    async def test_a_nearly_full_disk_refuses_publishes(self, rig: ServerRig) -> None:
        client = await rig.client()
        await a_topic(client)
        rig.log.report_state(LogState(True, "12 bytes are free", 12, 1, 1))
        await rig.turn()

        refused = await client.expect(wire.Error, wire.PublishMessages, "news", [b"x"])

        assert (refused.name, refused.text) == ("disk_nearly_full", "12 bytes are free")
