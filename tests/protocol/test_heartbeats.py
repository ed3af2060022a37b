import pytest

from cmqd_protocol.events import ConnectionEnded
from cmqd_protocol.frames import HEARTBEAT
from cmqd_protocol.messages import Done, GetServerStatus
from cmqd_protocol.protocol_errors import ErrorCode
from support.protocol.connection_pair import ConnectionPair

HEARTBEAT_MS = 10_000


def a_pair(heartbeat_ms: int = HEARTBEAT_MS) -> ConnectionPair:
    return ConnectionPair.opened(server={"heartbeat_ms": heartbeat_ms}, client={"heartbeat_ms": heartbeat_ms})


class TestHeartbeats:
    def test_both_sides_say_something_after_half_the_time(self) -> None:
        pair = a_pair()
        assert pair.server.next_deadline_ms() == pair.client.next_deadline_ms() == 5_000
        pair.advance(4_999)
        assert pair.server.data_to_send(4_999) == pair.client.data_to_send(4_999) == []

        pair.advance(1)

        assert pair.server.data_to_send(5_000) == pair.client.data_to_send(5_000) == [HEARTBEAT]
        assert pair.server.next_deadline_ms() == 10_000

    def test_a_quiet_pair_lives_for_ever_without_events(self) -> None:
        pair = a_pair()

        for _ in range(1_000):
            pair.advance(5_000)
            pair.exchange()

        assert pair.take_events() == ([], [])
        assert pair.server.is_open
        assert bytes(pair.sent_by_client) == bytes(pair.sent_by_server) == HEARTBEAT * 1_000

    def test_traffic_takes_the_place_of_heartbeats(self) -> None:
        pair = a_pair()
        for number in range(1, 6):
            pair.advance(4_000)
            pair.client.send(GetServerStatus(number))
            pair.exchange()
            pair.server.send(Done(number))
            pair.exchange()

        assert HEARTBEAT not in (pair.sent_by_client[:4], pair.sent_by_server[:4])
        assert len(pair.client_events) == 5

    def test_one_heartbeat_at_a_time_waits_to_be_written(self) -> None:
        pair = a_pair()

        for _ in range(3):
            pair.advance(5_000)
            pair.client.data_to_send(pair.now_ms)
            pair.server.receive_data(HEARTBEAT, pair.now_ms)

        assert pair.server.data_to_send(pair.now_ms) == [HEARTBEAT]

    @pytest.mark.parametrize("side", ["server", "client"])
    def test_a_silent_peer_is_dead_after_twice_the_time(self, side: str) -> None:
        pair = a_pair()
        machine = pair.server if side == "server" else pair.client
        for now_ms in (5_000, 10_000, 15_000, 19_999):
            machine.tick(now_ms)
            machine.data_to_send(now_ms)
            assert machine.is_open
        assert machine.next_deadline_ms() == 20_000

        machine.tick(20_000)

        assert machine.ended == ConnectionEnded(
            105, "heartbeat_timeout", "nothing was read for 20000 ms", False, False, None
        )
        assert machine.next_deadline_ms() is None
        said = b"".join(machine.data_to_send(20_000))
        assert (b"heartbeat_timeout" in said) is (side == "server")

    def test_a_few_bytes_of_a_long_frame_are_signs_of_life(self) -> None:
        pair = a_pair()
        pair.server.receive_data(b"\0\0\1\0", 19_000)

        pair.server.tick(20_000)

        assert pair.server.is_open

    def test_no_heartbeats_if_neither_side_wants_them(self) -> None:
        pair = a_pair(0)

        pair.advance(10**9)

        assert pair.server.is_open
        assert pair.server.data_to_send(pair.now_ms) == []
        assert pair.server.next_deadline_ms() is None

    def test_the_error_of_a_server_that_gives_up_reaches_a_client_that_is_alive_after_all(self) -> None:
        pair = a_pair()
        pair.server.tick(20_000)

        pair.carry_to_client()

        [ended] = pair.client_events
        assert isinstance(ended, ConnectionEnded)
        assert (ended.code, ended.by_peer) == (ErrorCode.HEARTBEAT_TIMEOUT, True)
