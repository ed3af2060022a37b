"""The engine: a replicated copy of the log behind the storage, and the fencing of its leader (decision 0194).

=================  ======================================================================================
``interface``      ``Engine``, the calls that a broker makes, and the values that they take and return
``engine_errors``  ``EngineError`` and the errors below it
``fencing``        ``FencedEngine``: the fencing protocol, and all of its decisions, over any ``Database``
``database``       ``Database`` and ``Session``: the single steps that the protocol is made of
``postgresql``     the single steps over PostgreSQL
=================  ======================================================================================

Every call blocks and belongs to threads; no loop waits in it. Clock, pause, stop and randomness come in as arguments.

Glossary:

- barrier: a commit behind a read, so that the rows that were read are on two machines.
- cache: a data folder whose rows are durable in an engine; damage to a cache is no loss.
- engine: the database with the log of a pair of brokers, on two machines.
- epoch: the LSN of a leader's fence, and the number of that leader; a later leader has a higher epoch.
- fence: the empty row with which a leader begins, and behind which no earlier leader can append.
- handover: a takeover that an operator orders.
- leader: the broker of a pair that answers clients and appends to the log.
- named standby: the database server whose flush every commit of the engine waits for.
- proof: an answer of the engine to a commit: the broker was the leader at the request.
- shard: the number of a log and of the pair of brokers that serves the log.
- standby: the broker of a pair that copies rows and leads after the leader.
- takeover: the way of a standby to the lead: the lock, a fence, and all rows up to the fence.
- trim: the removal of rows that no live message and no checkpoint needs.
"""
