"""Tables of the generator: definitions for which no rule gives the synchronous form."""

INTERNAL = {
    *(
        "Attempts",
        "Channel",
        "CheckAnswers",
        "CheckRouter",
        "Connection",
        "HostsInTurn",
        "Intake",
        "LeaderSearch",
        "Link",
        "OpenChecks",
        "Processing",
        "Requester",
    ),
    "Settlements",
}
"""Classes with async methods that programs do not use."""

LEFT_OUT = {("Queue", "channel"), ("Client", "on_behalf_of")}
"""Public for other packages of cmqd, not for programs."""

IN_LOOP = {("Consumer", "stop"), ("Consumer", "statistics"), ("MessageStream", "stop"), ("MessageStream", "statistics")}
"""Plain methods that use objects of the loop."""

ALIASES = {"MessageHandler": "Callable[[ConsumedMessage[BodyT]], object]"}
"""Type aliases that no rule gives: a handler is a plain function."""

RETURNS = {
    ("Consumer", "handler"): "Callable[[MessageT], object]",
    ("Consumer", "__call__"): "object",
    ("ConsumedMessage", "process"): "AbstractContextManager[None, bool]",
}
"""Results that no rule gives; their names are imported by IMPORTS."""

IMPORTS = {"AbstractContextManager": "contextlib", "cast": "typing", "run_consumers": "cmqd_client.consumers.running"}
"""Modules of names in BODIES and RETURNS that the asynchronous module does not import."""

CALLBACKS = {
    "LocalTransaction": "thread.runs({name})",
    "LocalBatchTransaction": "thread.runs({name})",
    "Checker": "in_worker_thread({name})",
    "OnEvent": "{name}",
    "OnKeyChange": "{name}",
    "Follow": "{name}",
}
"""The argument to pass for a callback, by its type: in the thread that waits for the call, in a worker thread, or
(events, changes of keys and addresses: the hook may not wait) in the thread of the client."""

BODIES = {
    ("Client", "open"): """
        self.portal.start()
        try:
            self.portal.call(lambda: self.asynchronous.open(patience=patience))
        except BaseException:
            self.portal.stop()
            raise
        """,
    ("Client", "close"): """
        if self.portal.is_open:
            try:
                self.portal.call(self.asynchronous.close)
            finally:
                self.portal.stop()
        """,
    ("Client", "__aenter__"): """
        self.open()
        return self
        """,
    ("Client", "__aexit__"): "self.close()",
    ("Message", "body"): """
        try:
            return self.asynchronous.body
        except PoisonMessage as error:
            error.message = self
            raise
        """,
    ("ConsumedMessage", "process"): "return processing(self.asynchronous, self.portal)",
    ("Consumer", "handler"): "return plain_handler(self.asynchronous.handler)",
    ("Consumer", "__call__"): "return plain_handler(self.asynchronous.handler)(message)",
    ("MessageStream", "__aiter__"): """
        iterator = self.asynchronous.__aiter__()
        return self.portal.iterate(iterator, lambda element: cast("MessageT", ConsumedMessage(element, self.portal)))
        """,
    ("Queue", "consumer"): """
        decorate = self.asynchronous.consumer(
            concurrency=concurrency, prefetch=prefetch, lease=lease, ordered=ordered, first_retry=first_retry,
            longest_retry=longest_retry, wait=wait, patience=patience,
        )
        return lambda handler: Consumer(
            decorate(in_threads(handler, concurrency, lambda message: ConsumedMessage(message, self.portal))),
            self.portal,
        )
        """,
    ("Client", "run"): """
        seconds = None if grace is None else to_seconds(grace, "grace")
        running = [consumer.asynchronous for consumer in consumers]
        numbers = list(stop_signals)
        opened = not self.portal.is_open
        if opened:
            self.open(patience=None)
        try:
            self.portal.call_with_signals(lambda scope: run_consumers(running, numbers, seconds, scope), numbers)
        finally:
            if opened:
                self.close()
        """,
}
"""Bodies that no rule gives: a client begins and ends its thread, an error names the message of the caller, handlers
run in threads, and signals arrive in the main thread."""

DEFAULTS = {"_NOTHING": "NOTHING"}
"""Private names in defaults, and the names for them in ``portal``."""

REWORDED = (
    ("Make an async function the handler", "Make a function the handler"),
    ("an async context manager", "a context manager"),
    ("async with", "with"),
)
"""Words of first sentences that differ for synchronous callers."""

PORTAL_NAMES = {"in_threads", "plain_handler", "processing"}
"""Functions of ``portal`` that BODIES call."""

ITERATORS = {"AsyncIterator", "AsyncGenerator", "AsyncIterable"}
CONTEXTS = {"AbstractAsyncContextManager", "AsyncContextManager"}

HEAD = '''"""The synchronous client: the classes of ``cmqd_client`` with the same names, types, guarantees and errors.

    with connect("cmq://ID:KEY@localhost") as client:
        client.queue("orders").send(b"one espresso")

Needs the extra ``cmqd[sync]``. A client runs in a thread of its own with an event loop; each call waits for its result.
Any number of threads may share a client, also where an event loop runs already (Jupyter, an async view of Django). A
forked child opens a client of its own. Errors are those of :mod:`cmqd_client.errors`, and so are all values that are
not in this module.

A docstring here is a summary; the docstring that it names has the arguments, guarantees and errors. These differ:

- Where that docstring speaks of cancelling a call, an interrupt (Ctrl-C) of the waiting thread is meant.
- Handlers of a consumer run in threads of their own and cannot be interrupted. If a lease is lost, the handler, or the
  body of ``message.process()``, goes on and may look at ``message.lost``; its result is not used.
- A plain local transaction runs in the thread that called ``send``, with the database connections of that thread; a
  plain checker runs in a worker thread.

Generated by ``cmqd_client.synchronous.generator`` from the asynchronous classes: not to be edited.
"""

'''
