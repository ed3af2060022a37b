"""The settings that ``cmqd ha check`` refuses."""

import pytest

from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.engine.postgresql.session import PostgresSession
from cmqd.engine.postgresql.unsafe_settings import READ_SETTINGS, find_unsafe
from support.postgresql.servers import PostgresCluster

SAFE = {
    "data_checksums": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "max_slot_wal_keep_size": "-1",
    "synchronous_commit": "on",
    "synchronous_standby_names": "FIRST 1 (n2)",
}


def test_safe_settings() -> None:
    assert set(SAFE) == set(READ_SETTINGS)
    assert find_unsafe(SAFE, []) == []


@pytest.mark.parametrize("names", ["n2", "1 (n2)", 'FIRST 1 ("pg-2")', "first 1 ( n2 )", '"n2"'])
def test_a_single_named_standby_is_safe(names: str) -> None:
    assert find_unsafe(SAFE | {"synchronous_standby_names": names}, []) == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("", "there is one copy"),
        ("*", "a base backup"),
        ("FIRST 1 (*)", "a base backup"),
        ("ANY 1 (n2, n3)", "an old primary that hangs"),
        ("any 1 (n2)", "an old primary that hangs"),
        ("FIRST 1 (n2, n3)", "name exactly one"),
        ("n2, n3", "name exactly one"),
    ],
)
def test_other_names_are_refused(names: str, reason: str) -> None:
    (finding,) = find_unsafe(SAFE | {"synchronous_standby_names": names}, [])
    assert finding.is_refused
    assert reason in finding.reason
    assert "FIRST 1 (NAME)" in finding.cure


def test_a_standby_is_not_asked_for_its_own_standbys() -> None:
    settings = SAFE | {"synchronous_standby_names": "", "fsync": "off"}
    assert [finding.name for finding in find_unsafe(settings, [], is_primary=False)] == ["fsync"]


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [("fsync", True), ("full_page_writes", True), ("synchronous_commit", False), ("data_checksums", False)],
)
def test_settings_that_are_off(name: str, is_refused: bool) -> None:
    (finding,) = find_unsafe(SAFE | {name: "off"}, [])
    assert (finding.name, finding.value, finding.is_refused) == (name, "off", is_refused)


def test_a_slot_needs_a_limit() -> None:
    (finding,) = find_unsafe(SAFE, ["n2", "n3"])
    assert finding.name == "max_slot_wal_keep_size"
    assert "n2, n3" in finding.reason
    assert find_unsafe(SAFE | {"max_slot_wal_keep_size": "4096"}, ["n2"]) == []


@pytest.mark.system
@pytest.mark.postgresql
def test_the_settings_of_a_server(shared_cluster: PostgresCluster) -> None:
    (session,) = PostgresDatabase(shared_cluster.url("check")).primaries(lambda _timeline: True)
    assert isinstance(session, PostgresSession)
    assert session.unsafe_settings() == []
    shared_cluster.n1.configure(full_page_writes="off")
    assert [finding.name for finding in session.unsafe_settings()] == ["full_page_writes"]
    shared_cluster.n1.configure(full_page_writes="on")
    session.close()
