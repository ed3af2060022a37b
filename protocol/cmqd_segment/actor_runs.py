"""Clients in a record: the field ``actors``, runs of numbers of ``ActorSeen``.

A record joins the requests of several clients. Its field ``actors`` has one of three forms:

- empty: no client is known, or the broker itself made the change;
- ``[number]``: one client made the whole change;
- ``[count, number, count, number ...]``: the first ``count`` messages (positions, leases) of the record are of the
  client with that number, and so on. The counts add up to the messages of the record; number 0 = not known.
"""

from collections.abc import Iterable, Iterator, Sequence

from cmqd_segment.records import Runs


def pack_actors(counted: Iterable[tuple[int, int]]) -> Runs:
    """Pack (count, number) of clients in the order of a record's messages; equal neighbours are joined."""
    runs: Runs = []
    for count, number in counted:
        if not count:
            continue
        if runs and runs[-1] == number:
            runs[-2] += count
        else:
            runs += (count, number)
    if len(runs) == 2:
        return runs[1:] if runs[1] else []
    return runs


def actor_ranges(actors: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yield (count, number) for each client in the field ``actors`` of a record with ``count`` messages.

    Counts beyond the messages of the record are cut, and messages without a run have number 0.
    """
    if len(actors) == 1:
        yield count, actors[0]
        return
    pairs = iter(actors)
    for run in pairs:
        number = next(pairs, 0)
        some = min(run, count)
        if some:
            yield some, number
        count -= some
    if count:
        yield count, 0


def actor_numbers(actors: Sequence[int], count: int) -> list[int]:
    """Return the number of the client of each message of a record with ``count`` messages; 0 = not known."""
    return [number for some, number in actor_ranges(actors, count) for _ in range(some)]
