"""Real PostgreSQL servers for tests: a primary, its named synchronous standby and a third server, on loopback.

with PostgresCluster(Installation.of_session()) as cluster:
    cluster.url("broker")          the URL of all three servers, through links that a test can cut
    cluster.n1.kill()              SIGKILL to every process of a server; ``start`` is its supervisor
    cluster.n1.freeze(), .thaw()   SIGSTOP and SIGCONT to every process of a server
    cluster.promote(cluster.n2)    the standby becomes a primary on the next timeline
    cluster.cut("broker", "n1")    nothing passes between these two until ``mend``; no end closes
"""
