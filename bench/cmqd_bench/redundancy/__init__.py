"""The costs of redundancy, and the length of a takeover, over three PostgreSQL servers on this machine.

pair       two brokers over the servers of the tests
callers    clients that call all the time and note each call
takeover   python -m cmqd_bench takeover
costs      python -m cmqd_bench redundancy
"""
