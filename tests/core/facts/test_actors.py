"""The table of actors: numbers, the shares of keys, and actors that are forgotten."""

import sys
from collections.abc import Iterator

import pytest

from cmqd.core.facts.actors import ACTORS_A_PART, Actors
from cmqd.core.limits import Limits
from cmqd_segment.checkpoint import ActorsSlice
from cmqd_segment.records import ActorSeen, AnyRecord
from cmqd_types.actors import NO_ACTOR, Actor

SHOP = Actor("shop", "AKIDone", "checkout", "10.0.0.1")
OTHER_HOST = Actor("shop", "AKIDone", "checkout", "10.0.0.2")


class Table:
    """A table with the records that it made."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.actors = Actors(self.limits)
        self.records: list[AnyRecord] = []

    def number_of(self, actor: Actor) -> int:
        number = self.actors.number_of(actor, self.records)
        self.actors.check_invariants()
        return number

    def checkpoint(self, lsn: int, sealed_upto: int) -> list[ActorsSlice]:
        parts = list(self.actors.slices(lsn, sealed_upto))
        self.actors.check_invariants()
        return parts

    def loaded(self, parts: list[ActorsSlice]) -> "Table":
        table = Table(self.limits)
        for part in parts:
            table.actors.load(part)
        table.actors.check_invariants()
        return table


@pytest.fixture
def table() -> Table:
    return Table()


def named(count: int, key: str = "AKIDone") -> Iterator[Actor]:
    return (Actor("shop", key, f"worker {number}", "10.0.0.1") for number in range(count))


# ---------------------------------------------------------------------- numbers


def test_an_actor_gets_its_number_once_with_a_record(table: Table) -> None:
    assert [table.number_of(SHOP), table.number_of(OTHER_HOST), table.number_of(SHOP)] == [1, 2, 1]
    assert table.records == [ActorSeen(1, SHOP), ActorSeen(2, OTHER_HOST)]


def test_equal_actors_of_two_connections_have_one_number(table: Table) -> None:
    table.number_of(SHOP)

    assert table.number_of(Actor("shop", "AKIDone", "checkout", "10.0.0.1")) == 1


def test_a_host_that_the_server_saw_differs_from_one_that_was_stated(table: Table) -> None:
    stated = Actor("shop", "AKIDone", "checkout", "10.0.0.1", "127.0.0.1")

    assert [table.number_of(SHOP), table.number_of(stated)] == [1, 2]


def test_a_client_without_a_key_is_not_known(table: Table) -> None:
    assert table.number_of(NO_ACTOR) == 0
    assert table.actors.joined([NO_ACTOR], [3], 3, table.records) == []
    assert table.actors.joined([], [], 3, table.records) == []
    assert table.records == []
    assert table.checkpoint(1, 0) == []


# ---------------------------------------------------------------------- the field of a record


def test_one_client_for_all_messages_is_its_number_alone(table: Table) -> None:
    equal = Actor("shop", "AKIDone", "checkout", "10.0.0.1")

    assert table.actors.joined([SHOP], [256], 256, table.records) == [1]
    assert table.actors.joined([SHOP, SHOP, SHOP], [1, 5, 2], 8, table.records) == [1]
    assert table.actors.joined([SHOP, equal], [1, 1], 2, table.records) == [1]


def test_lone_records_of_a_client_share_the_list_of_its_number(table: Table) -> None:
    field = table.actors.joined([SHOP], [1], 1, table.records)

    assert field == [1]
    assert table.actors.joined([SHOP], [1], 1, table.records) is field
    assert table.records == [ActorSeen(1, SHOP)]
    # A replay can give the number anew, behind a checkpoint from before the client was forgotten.
    table.actors.apply(ActorSeen(7, SHOP))
    assert table.actors.joined([SHOP], [1], 1, table.records) == [7]
    assert table.actors.joined([NO_ACTOR], [1], 1, table.records) == []


def test_an_actor_of_a_lone_record_is_of_the_present_generation(table: Table) -> None:
    table.actors.joined([SHOP], [1], 1, table.records)
    table.checkpoint(10, 10)
    table.actors.joined([SHOP], [1], 1, table.records)
    table.checkpoint(20, 20)

    assert table.actors.joined([SHOP], [1], 1, table.records) == [1]


def test_clients_stand_in_the_order_of_their_messages(table: Table) -> None:
    clients = [SHOP, OTHER_HOST, OTHER_HOST, SHOP]

    assert table.actors.joined(clients, [3, 1, 1, 2], 7, table.records) == [3, 1, 2, 2, 2, 1]


def test_a_client_without_messages_in_the_record_gets_no_number(table: Table) -> None:
    assert table.actors.joined([SHOP, OTHER_HOST], [0, 2], 2, table.records) == [1]
    assert table.records == [ActorSeen(1, OTHER_HOST)]


def test_the_last_receive_of_a_record_may_get_fewer_messages_than_it_asked_for(table: Table) -> None:
    assert table.actors.joined([SHOP, OTHER_HOST, SHOP], [2, 16, 16], 5, table.records) == [2, 1, 3, 2]


def test_a_client_that_is_not_known_keeps_its_place(table: Table) -> None:
    assert table.actors.joined([NO_ACTOR, SHOP], [2, 1], 3, table.records) == [2, 0, 1, 1]


def test_clients_follow_positions_that_do_not_ascend(table: Table) -> None:
    clients = [SHOP, OTHER_HOST]

    assert table.actors.sorted_by([3, 4, 9], clients, [2, 1], table.records) == [2, 1, 1, 2]
    assert table.actors.sorted_by([9, 4, 3], clients, [2, 1], table.records) == [1, 2, 2, 1]
    assert table.actors.sorted_by([9, 3, 4], clients, [2, 1], table.records) == [1, 1, 1, 2, 1, 1]


# ---------------------------------------------------------------------- shares


def test_names_beyond_the_share_of_a_key_have_one_number_and_leave_room_for_others() -> None:
    table = Table(Limits(max_actors_per_key=3))
    numbers = [table.number_of(actor) for actor in named(10)]

    assert numbers == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert table.records[-1] == ActorSeen(4, Actor("shop", "AKIDone"))
    # The names within the share keep their numbers, and another key has a share of its own.
    assert [table.number_of(actor) for actor in named(3)] == [1, 2, 3]
    assert [table.number_of(actor) for actor in named(3, "AKIDtwo")] == [5, 6, 7]


def test_an_account_with_many_keys_leaves_room_for_other_accounts() -> None:
    table = Table(Limits(max_actors_per_account=3))
    numbers = [table.number_of(actor) for key in ("AKIDone", "AKIDtwo", "AKIDthree") for actor in named(2, key)]

    assert numbers == [1, 2, 3, 4, 5, 5]
    assert table.number_of(Actor("mails", "AKIDfour", "worker")) == 6


def test_beyond_the_limit_of_all_keys_a_further_key_has_one_number() -> None:
    table = Table(Limits(max_actors=3))
    list(map(table.number_of, named(3)))

    assert [table.number_of(actor) for actor in named(3, "AKIDtwo")] == [4, 4, 4]
    assert [table.number_of(actor) for actor in named(2, "AKIDthree")] == [5, 5]


def test_names_that_were_forgotten_make_room() -> None:
    table = Table(Limits(max_actors_per_key=2))
    list(map(table.number_of, named(2)))
    new = Actor("shop", "AKIDone", "new", "10.0.0.9")
    assert table.number_of(new) == 3

    table.checkpoint(10, 0)
    table.checkpoint(20, 10)

    assert len(table.actors) == 0
    assert table.number_of(new) == 4
    assert table.records[-1] == ActorSeen(4, new)


# ---------------------------------------------------------------------- forgetting


def test_an_actor_stays_while_a_row_outside_of_sealed_segments_may_name_it(table: Table) -> None:
    table.number_of(SHOP)
    table.checkpoint(10, 0)
    # Rows up to 10 are not sealed yet.
    (part,) = table.checkpoint(20, 9)

    assert part == ActorsSlice(2, [(1, SHOP)])
    # Sealed: no row behind 10 names the actor.
    (part,) = table.checkpoint(30, 10)
    assert part == ActorsSlice(2, [])


def test_an_actor_that_goes_on_keeps_its_number(table: Table) -> None:
    for lsn in range(10, 100, 10):
        table.number_of(SHOP)
        table.checkpoint(lsn, lsn)

    assert table.records == [ActorSeen(1, SHOP)]


def test_an_actor_named_while_the_checkpoint_is_written_stays() -> None:
    table = Table(Limits(max_actors_per_key=2 * ACTORS_A_PART))
    list(map(table.number_of, named(ACTORS_A_PART)))
    shop = table.number_of(SHOP)
    gone = table.number_of(OTHER_HOST)
    table.checkpoint(10, 0)
    parts = table.actors.slices(20, 10)
    assert next(parts) == ActorsSlice(gone + 1, [])
    table.number_of(SHOP)
    new = table.number_of(Actor("shop", "AKIDone", "new", ""))

    # An actor that came meanwhile is in a row behind the header.
    assert list(parts) == [ActorsSlice(gone + 1, [(shop, SHOP)])]
    assert (table.number_of(SHOP), new) == (shop, gone + 1)


def test_a_number_is_never_used_twice(table: Table) -> None:
    table.number_of(SHOP)
    table.checkpoint(10, 0)
    parts = table.checkpoint(20, 10)
    assert parts == [ActorsSlice(2, [])]

    assert table.number_of(SHOP) == 2
    assert table.loaded(parts).number_of(OTHER_HOST) == 2


# ---------------------------------------------------------------------- restarts


def test_a_checkpoint_keeps_numbers_and_shares() -> None:
    table = Table(Limits(max_actors_per_key=2))
    list(map(table.number_of, [*named(3), *named(1, "AKIDtwo")]))
    loaded = table.loaded(table.checkpoint(10, 0))

    assert [loaded.number_of(actor) for actor in [*named(3), *named(1, "AKIDtwo")]] == [1, 2, 3, 4]
    assert loaded.records == []
    assert loaded.number_of(Actor("shop", "AKIDtwo", "new", "")) == 5


def test_a_large_table_is_written_in_parts(table: Table) -> None:
    limits = Limits(max_actors_per_key=ACTORS_A_PART + 1)
    table = Table(limits)
    list(map(table.number_of, named(ACTORS_A_PART + 1)))
    parts = table.checkpoint(10, 0)

    assert [len(part.actors) for part in parts] == [ACTORS_A_PART, 1]
    assert {part.next_number for part in parts} == {ACTORS_A_PART + 2}
    assert len(table.loaded(parts).actors) == ACTORS_A_PART + 1


def test_a_record_that_the_checkpoint_has_changes_nothing(table: Table) -> None:
    table.number_of(SHOP)
    loaded = table.loaded(table.checkpoint(10, 0))
    loaded.actors.apply(ActorSeen(1, SHOP))

    loaded.actors.check_invariants()
    assert loaded.number_of(SHOP) == 1
    assert loaded.number_of(OTHER_HOST) == 2


def test_an_actor_that_came_back_after_the_checkpoint_has_its_second_number(table: Table) -> None:
    table.number_of(SHOP)
    loaded = table.loaded(table.checkpoint(10, 0))
    loaded.actors.apply(ActorSeen(7, SHOP))

    loaded.actors.check_invariants()
    assert loaded.number_of(SHOP) == 7
    assert loaded.number_of(OTHER_HOST) == 8


def test_the_first_part_copies_no_other_part() -> None:
    """At the limit, a list of pairs took ten milliseconds of the loop."""
    table = Table(Limits(max_actors_per_key=10 * ACTORS_A_PART))
    for actor in named(10 * ACTORS_A_PART):
        table.actors.number_of(actor, table.records)

    before = sys.getallocatedblocks()
    parts = table.actors.slices(10, 0)
    first = next(parts)

    assert sys.getallocatedblocks() - before < 3 * ACTORS_A_PART
    assert [number for part in (first, *parts) for number, _ in part.actors] == list(range(1, 10 * ACTORS_A_PART + 1))
