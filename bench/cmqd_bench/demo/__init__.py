"""The demos: real input through a broker, and books that prove the result.

``books`` has the rules, ``input`` the messages, ``traffic`` the topic with its subscribers, which both demos share.
``kill`` kills the broker half way; ``spark`` reads its log with Spark. ``python -m cmqd_bench.demo`` runs either.
"""
