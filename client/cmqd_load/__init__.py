"""The load generator: cheap connections to a broker, closed and open loops, and histograms of latencies.

``cmq bench`` and the harness of a checkout (``bench/``) run their loads with this package. ``wire`` and ``connect`` are
the connections, ``clients`` the producers and consumers, ``pacer`` the clock of an open loop, ``histogram`` the
latencies. ``native_job`` describes a load to the generator in C, which only a checkout has.
"""
