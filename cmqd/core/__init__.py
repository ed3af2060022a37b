"""The broker's rules, pure: no sockets, no disk, no clock, no randomness.

Time comes in as ``now_ms``, ids and keys as arguments. Operations return an :class:`~cmqd.core.outcome.Outcome`.

``broker`` is the door, and ``parts`` makes the objects behind it, of the rooms ``facts`` (what is true; changed by
records alone, live and in recovery), ``runtime`` (what a restart forgets), ``operations`` (a class for each verb or
theme) and ``recovery``. Imports point downwards: operations to runtime and facts, recovery to facts, runtime to facts.

Glossary:

- account: the owner of queues, topics and access keys.
- active: receivable; neither delayed nor in flight.
- agenda: the times at which work comes due without a request.
- check: a question to a producer about an undecided half message.
- checkpoint: the facts in a file, as of an LSN, so that a start replays only the records after it.
- copy: a message that a publish stored in the queue of a subscription.
- damaged: of a message with an unreadable body.
- dead letter: a message that was moved to a dead-letter queue, with its origin.
- delayed: stored, and active later.
- delivery: passing a published message to one subscription, as a copy in a queue or as a push to a URL.
- fact: state that records alone change; the opposite is runtime.
- floor: the position of a queue below which all messages are gone.
- half message: a stored message that no consumer receives until its transaction commits.
- I/O batch: the work of the loop between two waits for input: read, decide, write to the storage once.
- in flight: received, and hidden from other receives by a lease.
- lane: the pages of one kind, with their limit and their line.
- lease: the right of a receive to a message until its visibility timeout ends, and the number of that receive.
- LSN: the number of a row of the log.
- moving: of a message that is reserved for another queue.
- outcome: the result of an operation: reply, records, bodies, and replies to waiting receives.
- overflow: delayed messages without one of the ``max_delayed`` places.
- page: bodies that are read from the log together.
- position: the place of a message in its queue or topic, dense from 0; it is never used twice.
- promise: an answer of a numbered send, or a dedup id, that must be remembered for a time.
- push: the POST of a delivery to a URL; on the wire, a frame that answers no request.
- receipt handle: the lease as a client sees it.
- record: a fact as the log stores it.
- redrive: the move of dead letters back to their queues, or to another queue.
- reply gate: the place where a reply waits until its LSN is durable.
- review: the examination of a queue for dead letters, a redrive and messages that can no longer be rewound.
- rewindable: deleted, but still inside the rewind window of the queue.
- row: the records and bodies of an append, stored whole or not at all.
- segment: a file of the log; active, then retired, then sealed, in the end dropped.
- session: the numbered sends of one producer, so that a repeated send is stored once.
- slice: a bounded part of long work; of a checkpoint, the facts of one queue, topic or subscription.
- slot: permission for one request to a URL.
- subscription: the interest of a queue or URL in messages of a topic.
- tick: a bounded slice of the work that has come due.
- waiting receive: a receive without messages yet, also called a long poll.
- window: the bodies of a queue that are in memory near its head.
"""
