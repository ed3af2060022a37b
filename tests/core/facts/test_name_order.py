"""The order of names: equal to a sort after any changes, and sorted once."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.core.facts.name_order import NameOrder


@dataclass(eq=False)
class Entry:
    account: str
    name: str


def table_of(*names: tuple[str, str]) -> dict[int, Entry]:
    return {number: Entry(*name) for number, name in enumerate(names)}


def names_of(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.account, entry.name) for entry in entries]


NAMES = st.tuples(st.sampled_from(["a", "b", "bb", "c"]), st.text("xyz", min_size=1, max_size=3))


@given(
    st.lists(st.tuples(st.sampled_from(["add", "remove", "sort"]), NAMES), max_size=40),
    st.sampled_from([None, "", "a", "b", "bb", "zz"]),
    st.tuples(st.sampled_from(["", "a", "aa", "b", "c", "d"]), st.sampled_from(["", "x", "yy", "zzzz"])),
    st.integers(1, 5),
)
def test_entries_behind_a_name_are_those_of_a_sort(
    changes: list[tuple[str, tuple[str, str]]], account: str | None, after: tuple[str, str], limit: int
) -> None:
    table: dict[int, Entry] = {}
    ids: dict[tuple[str, str], int] = {}
    order = NameOrder(table)
    for number, (change, name) in enumerate(changes):
        if change == "sort":
            order.sort()
        elif change == "add" and name not in ids:
            ids[name] = number
            table[number] = Entry(*name)
            order.add(table[number])
        elif change == "remove" and name in ids:
            order.remove(table.pop(ids.pop(name)))

    expected = sorted(name for name in ids if name > after and account in (None, name[0]))
    assert names_of(order.behind(account, after, limit)) == expected[:limit]


def test_readers_of_different_accounts_and_later_changes_cause_no_further_sort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(("b", "2"), ("a", "1"))
    order = NameOrder(table)
    assert names_of(order.behind("a", ("", ""), 9)) == [("a", "1")]
    monkeypatch.setattr(order, "sort", lambda: pytest.fail("sorted again"))

    table[7] = Entry("a", "0")
    order.add(table[7])
    order.remove(table.pop(0))

    assert names_of(order.behind(None, ("", ""), 9)) == [("a", "0"), ("a", "1")]
    assert names_of(order.behind("b", ("", ""), 9)) == []
