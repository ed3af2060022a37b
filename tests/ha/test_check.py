"""``cmqd ha check`` over real servers, by the command line."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cmqd.__main__ import main
from cmqd.exit_codes import ExitCode
from support.eventually import eventually_elsewhere
from support.postgresql.installation import Installation
from support.postgresql.leaders import Leader
from support.postgresql.servers import PostgresCluster
from support.processes.running_broker import RunningBroker

pytestmark = [pytest.mark.system, pytest.mark.postgresql]

SHARD = 71


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


def check(
    cluster: PostgresCluster, capsys: pytest.CaptureFixture[str], *servers: str, flags: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    url = cluster.url("check", *servers)
    code = main(["ha", "check", "--json", *flags, "--engine-url", url, "--shard", str(SHARD)])
    return code, json.loads(capsys.readouterr().out)


def test_safe_servers_and_their_leader(shared_cluster: PostgresCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with Leader(shared_cluster, "leader", SHARD) as leader:
        assert leader.run(leader.engine.try_lead).result()
        leader.take().result()
        leader.engine.announce(1, "7@boot", "first:5680")
        leader.append().result()

        code, document = check(shared_cluster, capsys)

    assert code == ExitCode.OK, document
    assert document["ok"]
    assert [server["role"] for server in document["servers"]] == ["primary, timeline 1", "standby", "standby"]
    seen = document["log"]["leader"]
    assert (seen["address"], seen["process"]) == ("first:5680", "7@boot")
    assert abs(seen["clock_offset_ms"]) < 30_000
    assert (document["log"]["log_id"], document["log"]["epoch"], document["log"]["newest_lsn"]) == ("the log", 1, 2)
    assert [(copy["name"], copy["is_second"]) for copy in document["log"]["copies"]] == [("n2", True), ("n3", False)]


def test_a_url_without_the_named_standby_is_refused(
    shared_cluster: PostgresCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a promotion the brokers would look for the new primary where it is not."""
    refused = [check(shared_cluster, capsys, *servers) for servers in (["n1"], ["n1", "n3"])]
    accepted = check(shared_cluster, capsys, "n1", "n2")
    follows_the_primary = check(shared_cluster, capsys, "n1", flags=("--one-address",))

    assert [code for code, _ in refused] == [ExitCode.NOT_SAFE] * 2
    (alone,), (other,) = (document["problems"] for _, document in refused)
    assert alone.startswith("engine_url lacks n2, the standby that will be promoted (it names the primary alone)")
    assert other.startswith("engine_url lacks n2, the standby that will be promoted (its standbys are n3)")
    assert "--one-address" in alone
    assert (accepted[0], follows_the_primary[0]) == (ExitCode.OK, ExitCode.OK), (accepted, follows_the_primary)


def test_the_holder_of_the_lock_is_named(shared_cluster: PostgresCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a holder that has not reported itself, such as a broker that hangs."""
    _, free = check(shared_cluster, capsys)
    with Leader(shared_cluster, "leader", SHARD) as leader:
        assert leader.run(leader.engine.try_lead).result()
        _, held = check(shared_cluster, capsys)
        leader.take().result()
        leader.engine.announce(1, "7@boot", "first:5680")
        leader.append().result()
        _, reported = check(shared_cluster, capsys)

    assert free["lock_holder"] is None
    assert re.match(r'session \d+ of PostgreSQL, from .*, named "cmqd", connected for \d+ s$', held["lock_holder"])
    assert re.search(rf'named "cmqd {SHARD} 1 7@boot/-?\d+ first:5680"', reported["lock_holder"])


def test_unsafe_servers_are_refused_with_reason_and_cure(
    shared_cluster: PostgresCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    url = shared_cluster.url("check")
    shared_cluster.n1.configure(synchronous_standby_names="ANY 1 (n2, n3)")
    shared_cluster.n2.configure(full_page_writes="off")
    try:
        code, document = check(shared_cluster, capsys)
        assert main(["ha", "check", "--engine-url", url]) == ExitCode.NOT_SAFE
        text = capsys.readouterr().out
        assert main(["ha", "status", "--engine-url", url]) == ExitCode.NOT_SAFE
        status = capsys.readouterr().out
    finally:
        shared_cluster.n1.configure(synchronous_standby_names="FIRST 1 (n2)")
        shared_cluster.n2.configure(full_page_writes="on")

    assert code == ExitCode.NOT_SAFE
    assert [[finding["name"] for finding in server["findings"]] for server in document["servers"]] == [
        ["synchronous_standby_names"],
        ["full_page_writes"],
        [],
    ]
    assert "UNSAFE  synchronous_standby_names = 'ANY 1 (n2, n3)': after a promotion" in text
    assert "cure: name the one standby that will be promoted" in text
    assert "commits wait for a named standby" in status


def test_servers_that_do_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://cmqd@127.0.0.1:1/postgres"

    assert main(["ha", "check", "--engine-url", url]) == ExitCode.NOT_SAFE

    text = capsys.readouterr().out
    assert "127.0.0.1:1 cannot be examined: connection to server" in text
    assert "no server takes writes" in text


def test_a_url_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ha", "check", "--engine-url", "postgresql://a:b:c@host:port:"]) == ExitCode.USAGE


def test_the_leader_of_two_brokers_hands_over(
    shared_cluster: PostgresCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    brokers: list[RunningBroker] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        flags = ("--redundancy", "postgresql", "--engine-url", shared_cluster.url(name))
        brokers.append(RunningBroker(tmp_path / name, *flags))
    leader, standby = brokers
    url = shared_cluster.url("check")
    with ThreadPoolExecutor(1) as thread:
        leader.start()
        try:
            refused = main(["ha", "handover", "--engine-url", url, "--data", str(leader.folder / "data"), "--json"])
            reason = json.loads(capsys.readouterr().out)
            leading = thread.submit(standby.start)
            eventually_elsewhere(lambda: main(["ha", "status", "--engine-url", url]) == 0)
            capsys.readouterr()

            code = main(["ha", "handover", "--engine-url", url, "--data", str(leader.folder / "data"), "--json"])

            done = json.loads(capsys.readouterr().out)
        finally:
            leader.kill()  # also if it was not stopped: the standby leads then
        leading.result()
        standby.kill()
    assert refused == ExitCode.NOT_SAFE
    assert reason["problems"][0].startswith("no handover: no")
    assert code == ExitCode.OK, done
    assert done["leader"] in standby.url
