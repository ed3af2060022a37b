"""The fencing protocol over a database in memory, in scenes."""

from support.engine_rig import Cluster


def test_a_leader_appends_and_a_second_leader_reads_it():
    cluster = Cluster()
    first = cluster.leader()
    first.append(3)
    first.append()

    second = cluster.leader()
    second.append()

    assert (first.epoch, second.epoch, second.last_lsn) == (1, 6, 7)
    cluster.judge()
