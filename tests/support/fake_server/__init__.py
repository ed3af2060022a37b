"""A small server for tests of clients: the real protocol over a loopback socket, queues in lists, faults to order.

It keeps the semantics that a client can observe in a few steps (numbered sends, waiting receives in order of arrival,
handles, cancellation, counts) and no more. Nothing happens by itself: no lease ends, nobody is asked about half
messages unless a test says so (``check``), a redrive has moved everything when it is answered unless a test holds it
up; what is published for a URL, or for a missing queue, waits. What goes wrong is ordered beforehand, per kind of
request::

    server.lose_answer(SendMessages)            carry it out, then drop the connection instead of answering
    server.drop_request(SendMessages)           drop the connection without carrying it out
    server.ignore(SendMessages)                 never answer
    server.refuse(SendMessages, code, ...)      answer with an error
    server.answer(kind, function)               answer what the function returns (None: nothing)

The requests of one noun are carried out by one module; a request by the method that has its name.
"""

from support.fake_server.accounts import AccountRequests
from support.fake_server.dead_letters import DeadLetterRequests
from support.fake_server.listener import SECRET_ID, SECRET_KEY
from support.fake_server.topics import TopicRequests
from support.fake_server.transactions import TransactionRequests

__all__ = ["SECRET_ID", "SECRET_KEY", "FakeServer"]


class FakeServer(DeadLetterRequests, TransactionRequests, TopicRequests, AccountRequests):
    """See the module; an async context manager that listens on a port of its own."""
