"""Error codes of the wire, and the exceptions of this package.

ProtocolError              root of the exceptions
├── LocalProtocolError     the state of the connection does not allow the call; no bytes were queued
└── RemoteProtocolError    the connection is over; raised by shells from a ``ConnectionEnded``
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Code of an Error frame. The name on the wire is the name of the member in lower case."""

    # connection: the server closes the connection after the error
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
    OTHER_SHARD = 309
    NO_DEAD_LETTER_QUEUE = 310
    DEAD_LETTERS_NOT_TAKEN = 311
    REDRIVE_NOT_FOUND = 312
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
    MESSAGE_NOT_FOUND = 410
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
    MESSAGE_NOT_WAITING = 430
    MESSAGE_NOT_PUBLISHED = 431
    # schedules
    SCHEDULE_NOT_FOUND = 440
    SCHEDULE_EXISTS = 441
    SCHEDULE_DIFFERS = 442
    TOO_MANY_SCHEDULES = 443
    # accounts
    ACCOUNT_EXISTS = 500
    ACCOUNT_NOT_FOUND = 501
    KEY_NOT_FOUND = 502
    LAST_KEY = 503
    ACCOUNT_NOT_EMPTY = 504
    KEY_EXISTS = 505
    # the server's state
    BUSY = 600
    DISK_NEARLY_FULL = 601
    SHUTTING_DOWN = 602
    OUTCOME_UNKNOWN = 603
    TOO_MANY_REQUESTS = 604
    INTERNAL_ERROR = 605
    MESSAGES_DAMAGED = 606
    STANDBY = 607
    MOVED = 608

    @property
    def wire_name(self) -> str:
        """``name`` of an Error frame."""
        return self.name.lower()

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed later, unchanged."""
        return self in RETRYABLE


RETRYABLE = frozenset(
    {
        ErrorCode.BACKLOG_FULL,
        ErrorCode.TOO_MANY_IN_FLIGHT,
        ErrorCode.DEAD_LETTERS_NOT_TAKEN,
        ErrorCode.BUSY,
        ErrorCode.DISK_NEARLY_FULL,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.STANDBY,
        ErrorCode.MOVED,
        ErrorCode.TOO_MANY_REQUESTS,
        ErrorCode.TOO_MANY_CONNECTIONS,
    }
)
"""Errors after which the same request may succeed later, unchanged. ``OUTCOME_UNKNOWN`` is not retryable, because the
request may have taken effect. A numbered send is safe to repeat even then."""


class ProtocolError(Exception):
    """Root of this package's exceptions."""


class LocalProtocolError(ProtocolError):
    """The state of the connection or the size of the message does not allow the call.

    Raised before any change: the connection continues unaffected. The cause is a bug of the caller, or a race with the
    end of the connection (see ``state``).
    """


class RemoteProtocolError(ProtocolError):
    """The connection is over: the peer broke the protocol, or refused or gave up the connection.

    The connections do not raise this exception: their event is a ``ConnectionEnded``. Shells that raise use it.
    ``code`` is an ``ErrorCode``, or a number that a newer peer sent.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
