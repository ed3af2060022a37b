"""The broker's rules, pure: no sockets, no disk, no clock, no randomness.

Time comes in as ``now_ms``, ids and keys as arguments. Operations return an :class:`~cmqd.core.outcome.Outcome`.

``broker`` is the door. Behind it are the rooms ``facts`` (what is true; changed by records alone, live and in
recovery), ``runtime`` (what a restart forgets), ``operations`` (a class for each verb or theme) and ``recovery``.
Imports point downwards: operations to runtime and facts, recovery to facts, runtime to facts.

Glossary:

- *position*: the place of a message in its queue or topic; it is never used twice.
- *record*: a fact as the log stores it. *Row*: the records of an outcome, stored whole or not at all.
- *active*: receivable. *In flight*: received and hidden by a lease. *Delayed*: active later. *Overflow*: delayed, and
  without one of the ``max_delayed`` places. *Half*: sent in a transaction, not decided. *Moving*: reserved for another
  queue. *Rewindable*: deleted, and can be brought back. *Damaged*: its body cannot be read.
- *lease*: the number of one receive of one message. *Receipt handle*: the lease as a client sees it.
- *floor*: every message below this position is gone.
- *window*: the bodies of a queue that are in memory. *Cold*: bodies sent now are not kept, because earlier bodies are
  in the log alone.
- *page*: bodies that are read from the log together. *Lane*: the pages of one kind, with their bound and line.
- *agenda*: the times at which work comes due. *Tick*: a bounded slice of the due work. *Review*: a look at a queue for
  dead letters, a redrive and messages that can no longer be rewound.
- *promise*: an answer of a numbered send, or a dedup id, that must be remembered for a time.
- *check*: a question to a producer about a half message.
- *slot*: permission for one request to a URL.
- *slice* (of a checkpoint): the facts of one queue, topic or subscription, true for an LSN.
"""
