import pytest

from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded
from cmqd_protocol.frames import encode_preamble
from cmqd_protocol.messages import Cancel, Done, GetServerStatus
from cmqd_protocol.protocol_errors import ErrorCode, LocalProtocolError
from cmqd_protocol.server_connection import ServerConnection
from cmqd_protocol.states import TRANSITIONS, Role, State, Step
from support.protocol.connection_pair import ConnectionPair, a_client, a_server

STATES = {
    Role.SERVER: [State.PREAMBLE, State.HELLO, State.OPEN, State.CLOSING, State.CLOSED],
    Role.CLIENT: [State.PREAMBLE, State.HELLO, State.PROOF, State.OPEN, State.CLOSING, State.CLOSED],
}


def in_state(role: Role, state: State) -> ServerConnection | ClientConnection:
    """A machine that was brought into a state by what leads there in life."""
    pair = ConnectionPair()
    side = pair.server if role is Role.SERVER else pair.client
    if state in (State.CLOSING, State.CLOSED):
        side.tick(5000)
        if state is State.CLOSED:
            side.closed()
    if (role, state) == (Role.CLIENT, State.HELLO):
        # A server sends its hello in the same breath as its preamble.
        side.receive_data(encode_preamble(1, 0), 0)
    while side.state is not state:
        assert pair.carry_to_server() | pair.carry_to_client(), f"{side} does not get to {state}"
    side.data_to_send(0)
    side.events()
    return side


ALL = [(role, state) for role, states in STATES.items() for state in states]


class TestTable:
    def test_the_table_has_the_states_of_each_side(self) -> None:
        assert {role: list(table) for role, table in TRANSITIONS.items()} == STATES

    @pytest.mark.parametrize("role", Role)
    def test_every_state_is_reached_and_every_state_ends(self, role: Role) -> None:
        table = TRANSITIONS[role]
        reached = {state for steps in table.values() for state in steps.values()} | {State.PREAMBLE}

        assert reached == set(table)
        assert all(steps[Step.CLOSED] is State.CLOSED for steps in table.values())

    @pytest.mark.parametrize(("role", "state"), ALL)
    def test_a_step_that_is_not_in_the_table_raises_and_changes_nothing(self, role: Role, state: State) -> None:
        for step in Step:
            side = in_state(role, state)
            if step in TRANSITIONS[role][state]:
                side._step(step)  # pyright: ignore[reportPrivateUsage]
                assert side.state is TRANSITIONS[role][state][step]
            else:
                with pytest.raises(LocalProtocolError, match=step.name):
                    side._step(step)  # pyright: ignore[reportPrivateUsage]
                assert side.state is state


class TestStates:
    @pytest.mark.parametrize(("role", "state"), ALL)
    def test_what_a_machine_says_of_itself(self, role: Role, state: State) -> None:
        side = in_state(role, state)

        assert side.is_open is (state is State.OPEN)
        assert side.is_ending is (state in (State.CLOSING, State.CLOSED))
        assert state.name in repr(side)
        assert (side.next_deadline_ms() is None) is side.is_ending

    @pytest.mark.parametrize("state", [state for state in STATES[Role.SERVER] if state is not State.OPEN])
    def test_a_server_replies_only_when_open(self, state: State) -> None:
        server = in_state(Role.SERVER, state)
        assert isinstance(server, ServerConnection)

        with pytest.raises(LocalProtocolError, match=state.name):
            server.send(Done(1))
        assert server.data_to_send(0) == []

    @pytest.mark.parametrize("state", [state for state in STATES[Role.CLIENT] if state is not State.OPEN])
    def test_a_client_asks_only_when_open(self, state: State) -> None:
        client = in_state(Role.CLIENT, state)
        assert isinstance(client, ClientConnection)

        for message in (GetServerStatus(1), Cancel(1)):
            with pytest.raises(LocalProtocolError, match=state.name):
                client.send(message)
        assert client.data_to_send(0) == []

    @pytest.mark.parametrize("state", [State.CLOSING, State.CLOSED])
    @pytest.mark.parametrize("role", Role)
    def test_nothing_happens_after_the_end(self, role: Role, state: State) -> None:
        side = in_state(role, state)

        side.receive_data(b"CMQD\0\1\0\1", 9000)
        side.tick(99_000)

        assert side.events() == []
        assert side.data_to_send(99_000) == []
        assert side.state is state

    @pytest.mark.parametrize("state", [State.PREAMBLE, State.HELLO, State.OPEN])
    def test_a_server_can_end_the_connection_in_any_state_once(self, state: State) -> None:
        server = in_state(Role.SERVER, state)
        assert isinstance(server, ServerConnection)

        server.end(ErrorCode.SHUTTING_DOWN, "bye")
        server.end(ErrorCode.INTERNAL_ERROR, "again")

        assert server.events() == [ConnectionEnded(602, "shutting_down", "bye", False, True)]
        assert server.state is State.CLOSING
        assert b"shutting_down" in b"".join(server.data_to_send(0))
        assert server.data_to_send(0) == []

    @pytest.mark.parametrize(("role", "state"), ALL)
    def test_closed_may_be_said_in_any_state_and_again(self, role: Role, state: State) -> None:
        side = in_state(role, state)

        side.closed()
        side.closed()

        assert side.state is State.CLOSED
        assert side.outstanding == 0

    def test_the_end_can_be_raised(self) -> None:
        server = a_server()
        server.receive_data(b"what?", 0)
        assert server.ended is not None

        raised = server.ended.exception()

        assert (raised.code, str(raised)) == (server.ended.code, server.ended.text)

    def test_a_new_machine_waits_for_the_preamble(self) -> None:
        assert a_server().state is a_client().state is State.PREAMBLE
        assert a_server().data_to_send(0) == []
        assert a_server().ended is None
