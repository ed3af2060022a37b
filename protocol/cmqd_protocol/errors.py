"""The error codes of the wire and the library's own exceptions.

ProtocolError              the conversation itself is wrong
├── LocalProtocolError     this side asked for something that the state does not allow; nothing was sent
└── RemoteProtocolError    the connection is over; raised by shells from a ``ConnectionEnded``
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """What went wrong; the name on the wire is the lower-case member name."""

    # connection: the server closes after these
    MALFORMED_FRAME = 100
    FRAME_TOO_LARGE = 101
    UNSUPPORTED_VERSION = 102
    AUTHENTICATION_FAILED = 103
    AUTHENTICATION_TIMEOUT = 104
    HEARTBEAT_TIMEOUT = 105
    WRONG_REGION = 106
    TOO_MANY_CONNECTIONS = 107
    # requests
    INVALID_ARGUMENT = 200
    UNKNOWN_OPERATION = 201
    CANCELLED = 202
    PERMISSION_DENIED = 203
    DUPLICATE_REQUEST_ID = 204
    REPLY_TOO_LARGE = 205
    # queues
    QUEUE_NOT_FOUND = 300
    QUEUE_EXISTS = 301
    QUEUE_DIFFERS = 302
    QUEUE_DELETED = 303
    TOO_MANY_QUEUES = 304
    DEAD_LETTER_QUEUE_IN_USE = 305
    TIME_NOT_REWINDABLE = 306
    REDRIVE_RUNNING = 307
    NOT_TRANSACTIONAL = 308
    # messages
    MESSAGE_TOO_LARGE = 400
    BATCH_TOO_LARGE = 401
    RECEIPT_HANDLE_INVALID = 402
    TOO_MANY_IN_FLIGHT = 403
    SEQUENCE_TOO_OLD = 404
    BACKLOG_FULL = 405
    TRANSACTION_NOT_FOUND = 406
    ALREADY_COMMITTED = 407
    ALREADY_ROLLED_BACK = 408
    OUT_OF_ORDER = 409
    # topics
    TOPIC_NOT_FOUND = 420
    TOPIC_EXISTS = 421
    TOPIC_DIFFERS = 422
    TOPIC_IN_USE = 423
    TOO_MANY_TOPICS = 424
    SUBSCRIPTION_NOT_FOUND = 425
    SUBSCRIPTION_EXISTS = 426
    SUBSCRIPTION_DIFFERS = 427
    TOO_MANY_SUBSCRIPTIONS = 428
    PUSH_UNAVAILABLE = 429
    # accounts
    ACCOUNT_EXISTS = 500
    ACCOUNT_NOT_FOUND = 501
    KEY_NOT_FOUND = 502
    LAST_KEY = 503
    ACCOUNT_NOT_EMPTY = 504
    # the server's state
    BUSY = 600
    DISK_NEARLY_FULL = 601
    SHUTTING_DOWN = 602
    OUTCOME_UNKNOWN = 603
    TOO_MANY_REQUESTS = 604
    INTERNAL_ERROR = 605
    MESSAGES_DAMAGED = 606

    @property
    def wire_name(self) -> str:
        """The ``name`` of an Error frame."""
        return self.name.lower()

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without being changed."""
        return self in RETRYABLE


RETRYABLE = frozenset(
    {
        ErrorCode.BACKLOG_FULL,
        ErrorCode.TOO_MANY_IN_FLIGHT,
        ErrorCode.BUSY,
        ErrorCode.DISK_NEARLY_FULL,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.TOO_MANY_REQUESTS,
        ErrorCode.TOO_MANY_CONNECTIONS,
    }
)
"""The same request may succeed later without being changed. ``OUTCOME_UNKNOWN`` is not among them: it may have
happened (a numbered send is safe to repeat all the same)."""


class ProtocolError(Exception):
    """Root of this package's exceptions."""


class LocalProtocolError(ProtocolError):
    """This side asked for something that the connection's state or the message's size does not allow.

    Raised before anything was changed or queued: the connection goes on as if it had not been asked. It is a bug of
    the caller, or a race with the end of the connection (``state`` tells).
    """


class RemoteProtocolError(ProtocolError):
    """The connection is over: the peer broke the protocol, or refused or gave up the connection.

    The machines do not raise it (they put a ``ConnectionEnded`` among the events); it is there for shells that do.
    ``code`` is an ``ErrorCode``, or the number that a newer peer sent.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
