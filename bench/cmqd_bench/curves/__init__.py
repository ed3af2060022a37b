"""Scale curves: cost per message and latency against queues, connections, backlog, subscribers, body and batch.

``catalog`` has the curves and their steps, ``loads`` the load of a step, ``rotation`` a client that walks through
queues, ``cliffs`` the judgement of a curve, and ``run`` the command.
"""
