"""Requests of a client that leaves replies unread: the requests begin when the client has read, in order of arrival.

A receive can name 256 messages to delete, and a connection can park thousands of receives. Requests are kept encoded,
as in their frames: 256 handles take 2.3 KB encoded, and 11 KB as objects. The memory budget counts the bytes.
"""

from collections import OrderedDict
from typing import cast

from cmqd.server.binary.shared_state import Shared
from cmqd.server.clients.client import Client
from cmqd_protocol.messages import Request, encoder, request_decoder


class ParkedRequests:
    """The parked requests of a connection; see the module.

    Invariant: ``stored_bytes`` is the size of all requests.
    """

    __slots__ = ("_encoded", "stored_bytes")

    def __init__(self) -> None:
        self._encoded: OrderedDict[int, bytes] = OrderedDict()
        """By request id, in order of arrival."""
        self.stored_bytes = 0

    def __len__(self) -> int:
        return len(self._encoded)

    def add(self, request: Request) -> None:
        """Add a request as the last."""
        encoded = self._encoded[request.request_id] = encoder.encode(request)
        self.stored_bytes += len(encoded)

    def take_first(self) -> Request:
        """Remove and return the oldest request; there must be one."""
        _, encoded = self._encoded.popitem(last=False)
        self.stored_bytes -= len(encoded)
        return cast("Request", request_decoder.decode(encoded))

    def take_up(self, client: Client, shared: Shared) -> None:
        """Dispatch the requests in order until the client is held, has too many unread receives, or its turn ends."""
        # A long publish among the collected requests holds the connection. Put back, parked requests would come in
        # reverse order.
        shared.decide_collected(client)
        turn_time = shared.io_batch.turn_time
        turn_time.restart()
        while self and not client.is_held and not turn_time.is_over:
            if client.unread_receives >= shared.max_unread_receives:
                # A collected receive counts as unread. If the receive waits once it is decided, no reply would follow,
                # and no event would take up the parked requests.
                shared.decide_collected(client)
                if client.unread_receives >= shared.max_unread_receives:
                    break
            shared.dispatch(client, self.take_first())

    def remove(self, request_id: int) -> bool:
        """Remove a request that the client cancelled; return False if there is none with this id."""
        encoded = self._encoded.pop(request_id, None)
        if encoded is None:
            return False
        self.stored_bytes -= len(encoded)
        return True
