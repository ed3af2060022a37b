"""The demos: real input through a broker, and books that prove the result.

``books`` has the rules, ``input`` the messages, ``traffic`` the topic with its subscribers, which both demos share.
``kill`` kills the broker half way; ``spark`` reads its log with Spark. ``console`` is a lively broker for a visitor of
the console, and proves nothing. ``python -m cmqd_bench.demo`` runs each.
"""
