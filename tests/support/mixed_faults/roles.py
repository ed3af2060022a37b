"""The manager of the servers of a cluster: it promotes the named standby, and no other server."""

import time

from support.eventually import eventually_elsewhere
from support.postgresql.servers import PostgresCluster

_FOLLOWS_WITHIN_SECONDS = 3.0
"""Time for a server to go on from the log of a new primary. A server that had rows of the old primary that the new one
lacks never does, and is copied anew."""
_COMMITS_WITHIN_SECONDS = 2.0


class Roles:
    """The roles of the three servers. All methods block.

    Invariant: ``synchronous_standby_names`` of the primary names ``standby``.
    """

    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        self.primary, self.standby, self.spare = cluster.servers.values()
        self.promoted_at = 0.0
        """Time of the end of the last promotion, by the monotonic clock."""

    def fail_over(self) -> None:
        """Promote the standby, with the spare as its named standby. The old primary, dead or alive, becomes the spare,
        and takes no part until ``restore``.
        """
        old, new, following = self.primary, self.standby, self.spare
        new.configure(synchronous_standby_names=f"FIRST 1 ({following.name})")
        new.ask("SELECT pg_promote()")
        self.promoted_at = time.monotonic()
        self.primary, self.standby, self.spare = new, following, old
        self._cluster.follow(following, new)
        ((file_name,),) = new.ask("SELECT pg_walfile_name(pg_current_wal_lsn())")
        timeline = int(file_name[:8], 16)
        # Its position alone tells nothing: rows that the new primary lacks make it the higher one.
        on_timeline = f"SELECT count(*) > 0 FROM pg_stat_wal_receiver WHERE received_tli = {timeline}"
        deadline = time.monotonic() + _FOLLOWS_WITHIN_SECONDS
        eventually_elsewhere(lambda: time.monotonic() > deadline or following.ask(on_timeline) == [(True,)])
        if following.ask(on_timeline) != [(True,)]:
            following.kill()
            self._cluster.rejoin(following, new)

    def restore(self) -> None:
        """Make the spare, which is not running, a fresh standby of the primary."""
        self._cluster.rejoin(self.spare, self.primary)

    def wait_until_whole(self) -> None:
        """Wait until both other servers have all of the primary's log."""
        self._cluster.wait_until_followed(self.primary, self.standby.name, self.spare.name)

    def isolate_primary(self) -> None:
        """Cut the primary from the other servers."""
        for server in (self.standby, self.spare):
            self._cluster.cut(self.primary.name, server.name)

    def wait_for_follower(self, broker: str) -> None:
        """Wait until a broker has copied the log and tells the primary of its last row."""
        query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = %s AND application_name ~ '^cmqd 0 [0-9]+ '"
        eventually_elsewhere(lambda: self.primary.ask(query, broker) == [(True,)])

    def wait_until_gone(self, broker: str) -> None:
        """Wait until the primary has noticed the end of a broker's sessions."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
        eventually_elsewhere(lambda: self.primary.ask(query, broker) == [(0,)])

    def end_sessions(self, broker: str) -> None:
        """End all sessions of a broker at the primary, as the server does when the broker's machine is silent."""
        self.primary.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", broker)

    def cancel_statements(self) -> None:
        """Cancel the statements of all brokers at the primary."""
        self.primary.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename IN ('a', 'b')")

    def wait_for_waiting_commit(self) -> None:
        """Wait until a commit of the primary waits for the standby; not for ever, because the load may pause."""
        query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        deadline = time.monotonic() + _COMMITS_WITHIN_SECONDS
        eventually_elsewhere(lambda: time.monotonic() > deadline or self.primary.ask(query) == [(True,)])

    def wait_for_new_row(self) -> None:
        """Wait until the primary has a row that it does not have now."""
        query = "SELECT max(lsn) FROM cmqd_rows"
        before = self.primary.ask(query)
        eventually_elsewhere(lambda: self.primary.ask(query) != before)
