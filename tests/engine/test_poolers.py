"""A connection pooler between a broker and PostgreSQL is refused, with a sentence and an exit code."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cmqd.engine.engine_errors import PoolerBetween
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.exit_codes import ExitCode
from support.postgresql.pooler import Pooler
from support.postgresql.servers import PostgresCluster
from support.processes.environment import broker_environment

pytestmark = [pytest.mark.system, pytest.mark.postgresql]
SHARD = 1 << 23


@pytest.mark.parametrize(
    ("changes_backends", "invents_ids", "sign"),
    [(True, False, "in transaction mode"), (True, True, "was told backend"), (False, True, "was told backend")],
)
def test_a_pooler_is_refused(
    shared_cluster: PostgresCluster, *, changes_backends: bool, invents_ids: bool, sign: str
) -> None:
    with Pooler(shared_cluster.n1.port, changes_backends=changes_backends, invents_ids=invents_ids) as pooler:
        database = PostgresDatabase(f"postgresql://cmqd@127.0.0.1:{pooler.port}/postgres", SHARD)
        engine = FencedEngine(
            database,
            monotonic=time.monotonic,
            sleep=time.sleep,
            stopping=lambda: False,
            new_log_id=lambda: "the log",
            wall_ms=lambda: 0,
        )
        with pytest.raises(PoolerBetween, match=sign):
            engine.take()
        engine.close()


def test_a_proxy_that_passes_bytes_on_is_no_pooler(shared_cluster: PostgresCluster) -> None:
    database = PostgresDatabase(shared_cluster.url("broker"), SHARD)
    for _ in range(2):
        (session,) = database.primaries(lambda _timeline: True)
        session.close()
    assert database.refusal == ""


def test_a_broker_behind_a_pooler_ends_with_the_reason(shared_cluster: PostgresCluster, tmp_path: Path) -> None:
    with Pooler(shared_cluster.n1.port, changes_backends=True, invents_ids=False) as pooler:
        url = f"postgresql://cmqd@127.0.0.1:{pooler.port}/postgres"
        command = [sys.executable, "-m", "cmqd", "serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
        ended = subprocess.run(
            [*command, "--redundancy", "postgresql", "--engine-url", url],
            env=broker_environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.returncode == ExitCode.CANNOT_OPEN
    assert "a connection pooler in transaction mode is between" in ended.stdout + ended.stderr
