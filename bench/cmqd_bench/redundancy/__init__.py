"""What redundancy costs, and how long a takeover lasts, over three PostgreSQL servers on this machine.

pair       two brokers over the servers of the tests
callers    clients that call all the time and note each call
takeover   python -m cmqd_bench takeover
costs      python -m cmqd_bench redundancy
"""
