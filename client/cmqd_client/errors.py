"""The errors of the client, as a tree.

    CmqError                        root; its attributes are explained in the class
    ├── ClientClosed                   the client (or connection) was closed; the request was not sent
    ├── ServerUnreachable              no connection could be made in time; the request was not sent
    ├── ConnectionLost                 the connection ended before the reply: the request may have been executed
    ├── RequestTimeout                 no reply in time: the request may have been executed
    ├── NoReply                        a request to a queue was not replied to in time
    ├── NotSupported                   the server is older than the call needs; the request was not sent
    ├── ProtocolViolation              the peer does not speak this protocol (or not properly); the connection is closed
    ├── PartialFailure                 some entries of a batch failed: an exception group, with the successes
    ├── PoisonMessage                  the body of a received message does not decode to the type of its queue handle
    └── ServerError                    the server answered with an error: a class per code
        ├── ConnectionRefused             errors of the connection, which the server closes
        │   ├── MalformedFrame, FrameTooLarge, UnsupportedVersion, AuthenticationFailed, AuthenticationTimeout,
        │   └── HeartbeatTimeout, WrongRegion, TooManyConnections
        ├── InvalidArgument, UnknownOperation, RequestCancelled, PermissionDenied, DuplicateRequestId, ReplyTooLarge
        ├── AttributesDiffer              an ``ensure`` found other attributes
        │   └── QueueDiffers, TopicDiffers, SubscriptionDiffers, ScheduleDiffers
        ├── QueueNotFound, QueueExists, QueueDeleted, TooManyQueues
        ├── DeadLetterQueueInUse, TimeNotRewindable, RedriveRunning, RedriveNotFound
        ├── NotTransactional, OtherShard
        ├── NoDeadLetterQueue, DeadLettersNotTaken      of ``reject``; the message stays in flight
        ├── MessageTooLarge, BatchTooLarge, ReceiptHandleInvalid, TooManyInFlight, SequenceTooOld, BacklogFull,
        ├── OutOfOrder                    send or publish with an unknown ``after``
        ├── TransactionNotFound, AlreadyCommitted, AlreadyRolledBack      of a half message
        ├── TopicNotFound, TopicExists, TopicInUse, TooManyTopics
        ├── SubscriptionNotFound, SubscriptionExists, TooManySubscriptions, PushUnavailable
        ├── MessageNotWaiting, MessageNotPublished, MessageNotFound
        ├── ScheduleNotFound, ScheduleExists, TooManySchedules
        ├── AccountExists, AccountNotFound, AccountNotEmpty, KeyNotFound, KeyExists, LastKey
        ├── Busy, DiskNearlyFull, ShuttingDown, TooManyRequests, InternalError, MessagesDamaged
        ├── Elsewhere                     another server answers such requests; the client follows
        │   └── Standby, Moved
        ├── OutcomeUnknown                also raised by the client: see the class
        └── UnknownServerError            a code that this version of the client does not know

A failed call has changed no state, unless its class says otherwise. Before an error reaches the caller, the client has
used up the safe repeats (see :mod:`cmqd_client.links.retry`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Self, TypeAlias, cast

import msgspec

from cmqd_client.durations import to_datetime
from cmqd_client.error_words import PYTHON_WORDS
from cmqd_client.messages.message_ids import MessageId
from cmqd_protocol.messages import Error
from cmqd_protocol.protocol_errors import RETRYABLE, ErrorCode
from cmqd_types.sentences import Words, put_together


class CmqError(Exception):
    """Root of all errors that the client raises on purpose (wrong types and values of arguments aside).

    Attributes:
        code: the number on the wire; None for errors found by the client.
        name: the stable name to log and to switch on, for example ``queue_not_found``.
        retryable: the same call may succeed later without being changed.
        retry_after: pause in seconds that the server suggests before a retry; None = no suggestion.
        request_id: number of the request, as in the server's log; None if there was none.
        connection_id: the server's number of the connection of the request.
        details: facts for programs, in the names and units of the protocol: ``field``, ``value``, ``limit``, ``range``
            (smallest and largest value), ``unit`` (of value and range: ``ms``, ``bytes``, ``time``), ``difference`` ...
        parts: the text in parts, as the server sent it; None = an error of the client, or of an older server.
        waited: seconds from the call to this error, over all attempts; None = the error came without a wait.
        attempts: number of attempts of the call; 0 = not known.
    """

    code: int | None = None
    name: str = "error"
    retryable: bool = False

    def __init__(
        self,
        text: str,
        *,
        retry_after: float | None = None,
        request_id: int | None = None,
        connection_id: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(text)
        self.text: str = text
        self.retry_after: float | None = retry_after
        self.request_id: int | None = request_id
        self.connection_id: int | None = connection_id
        self.details: Mapping[str, Any] = details or {}
        self.parts: list[Any] | None = None
        self.waited: float | None = None
        self.attempts: int = 0

    def __str__(self) -> str:
        if self.waited is None:
            return self.text
        attempts = f", {self.attempts} attempts" if self.attempts > 1 else ""
        return f"{self.text} (waited {self.waited:.1f} s{attempts})"

    def text_in(self, words: Words) -> str:
        """Return the text with other names and units. A text without parts is returned as it is."""
        return self.text if self.parts is None else put_together(self.parts, words) or self.text


class ClientClosed(CmqError):
    """The client was closed before or during the call; open a new client."""

    name = "client_closed"


class ServerUnreachable(CmqError):
    """No connection could be made in time (refused, unknown host, TLS failure, no answer). The request was not sent."""

    name = "server_unreachable"
    retryable = True


class ConnectionLost(CmqError):
    """The connection ended before the reply; the request may have been executed or not."""

    name = "connection_lost"
    retryable = True


class RequestTimeout(CmqError):
    """No reply came in time. The request may have been executed, or may still be."""

    name = "request_timeout"
    retryable = True


class ProtocolViolation(CmqError):
    """The received bytes are not this protocol: another service listens on that port, or the proof was wrong."""

    name = "protocol_violation"


class NoReply(CmqError):
    """No reply to a request came in time (``Client.request``). The request may have been processed, or may still be."""

    name = "no_reply"


class NotSupported(CmqError):
    """The server is too old for this call and would ignore a part of the request. The request was not sent.

    ``details`` has ``feature`` (the server's word for the missing feature) and ``field``.
    """

    name = "not_supported"


class PoisonMessage(CmqError):
    """The body of a received message is not of the type of its queue handle. The message stays in flight.

    Attributes:
        message: the :class:`cmqd_client.Message`, to delete, release or dead-letter; ``raw_body`` has its bytes. For a
            check, the :class:`cmqd_client.TransactionCheck`.
    """

    name = "poison_message"

    def __init__(self, text: str, message: Any, *, request_id: int | None = None) -> None:
        super().__init__(text, request_id=request_id)
        self.message: Any = message


class ServerError(CmqError):
    """The server answered with an error; the error code chooses the class."""

    # Declared here again, because ``__init_subclass__`` assigns them: the public types stay known without the source.
    code: int | None = None
    name: str = "server_error"
    retryable: bool = False
    by_code: ClassVar[dict[int, type["ServerError"]]] = {}
    """The class of every code."""

    def __init_subclass__(cls, code: ErrorCode | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if code is None:
            return
        if code in ServerError.by_code:
            raise TypeError(f"{cls.__name__}: code {int(code)} belongs to {ServerError.by_code[code].__name__}")
        cls.code = int(code)
        cls.name = code.name.lower()
        cls.retryable = code in RETRYABLE
        ServerError.by_code[code] = cls


class Failure(msgspec.Struct, frozen=True):
    """A receipt handle of a batch that could not be used; the state of its message did not change."""

    receipt_handle: int
    error: CmqError
    """A ``ServerError``: refused. Another error: the request of this slice of the batch failed, or was not made because
    the request of an earlier slice failed; after ``OutcomeUnknown`` the entry may be done."""

    def __str__(self) -> str:
        return _with_subject(f"handle {self.receipt_handle}", self.error.text)


class DecisionFailure(msgspec.Struct, frozen=True):
    """A half message that could not be decided as requested."""

    id: MessageId
    error: CmqError
    """``TransactionNotFound``, ``AlreadyCommitted`` or ``AlreadyRolledBack``; ``MessagesDamaged`` if its body cannot be
    read for the commit; another error as in :class:`Failure`."""

    def __str__(self) -> str:
        return _with_subject(str(self.id), self.error.text)


def _with_subject(subject: str, text: str) -> str:
    """Return the text of an error with its handle or id in front, unless the text of the server has it already."""
    return text if subject in text else f"{subject}: {text}"


class SendFailure(msgspec.Struct, frozen=True):
    """A message of a split batch that was not stored, or (``OutcomeUnknown``) perhaps stored."""

    index: int
    """Position of the message in the batch, from 0."""
    error: CmqError

    def __str__(self) -> str:
        return f"message {self.index}: {self.error.text}"


AnyFailure: TypeAlias = Failure | DecisionFailure | SendFailure


class PartialFailure(CmqError, ExceptionGroup[CmqError]):
    """Some entries of a batch failed; the other entries are done, durably.

    An exception group: ``except*`` chooses by the error of an entry, and ``exceptions`` has the distinct errors in the
    order of the entries. The calls that raise this error return their result instead with ``check=False``.

    Attributes:
        failures: the failed entries, with the error of each.
        done: the successful entries: receipt handles, or message ids.
    """

    name = "partial_failure"

    def __new__(
        cls, text: str, failures: Sequence[AnyFailure], *, done: Sequence[Any] = (), request_id: int | None = None
    ) -> Self:
        """Make the group; there must be at least one failure."""
        # Entries of a failed request share its error, which must not be in the group several times.
        errors = {id(failed.error): failed.error for failed in failures}
        return super().__new__(cls, text, list(errors.values()))

    def __init__(
        self, text: str, failures: Sequence[AnyFailure], *, done: Sequence[Any] = (), request_id: int | None = None
    ) -> None:
        super().__init__(text, request_id=request_id)
        self.failures: Sequence[AnyFailure] = failures
        self.done: Sequence[Any] = done

    def derive(self, excs: Sequence[CmqError], /) -> "PartialFailure":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the part of this error with these exceptions, for ``split``, ``subgroup`` and ``except*``."""
        kept = {id(error) for error in excs}
        failures = [failed for failed in self.failures if id(failed.error) in kept]
        return PartialFailure(self.text, failures, done=self.done, request_id=self.request_id)


class UnknownServerError(ServerError):
    """The server is newer than this client and answered with a code unknown to the client; read ``name``."""


class ConnectionRefused(ServerError):
    """An error of the whole connection; the server closes the connection."""


class MalformedFrame(ConnectionRefused, code=ErrorCode.MALFORMED_FRAME):
    """The server could not read the client's bytes."""


class FrameTooLarge(ConnectionRefused, code=ErrorCode.FRAME_TOO_LARGE):
    """A request was larger than the negotiated frame size; split the batch."""


class UnsupportedVersion(ConnectionRefused, code=ErrorCode.UNSUPPORTED_VERSION):
    """Server and client have no version of the protocol in common."""


class AuthenticationFailed(ConnectionRefused, code=ErrorCode.AUTHENTICATION_FAILED):
    """The key does not exist, is disabled, or its secret is wrong. The client does not try again."""


class AuthenticationTimeout(ConnectionRefused, code=ErrorCode.AUTHENTICATION_TIMEOUT):
    """Authentication took longer than the server allows."""


class HeartbeatTimeout(ConnectionRefused, code=ErrorCode.HEARTBEAT_TIMEOUT):
    """The server heard nothing from this client for too long; was the event loop blocked?"""


class WrongRegion(ConnectionRefused, code=ErrorCode.WRONG_REGION):
    """The server serves another region than the requested region."""


class TooManyConnections(ConnectionRefused, code=ErrorCode.TOO_MANY_CONNECTIONS):
    """The server, or the account, is at its limit of connections."""


class InvalidArgument(ServerError, code=ErrorCode.INVALID_ARGUMENT):
    """A value is out of range or of the wrong form; ``details`` has ``field``, ``value`` and ``limit``."""


class UnknownOperation(ServerError, code=ErrorCode.UNKNOWN_OPERATION):
    """The server is older than this client and does not know the request."""


class RequestCancelled(ServerError, code=ErrorCode.CANCELLED):
    """The client cancelled the request."""


class PermissionDenied(ServerError, code=ErrorCode.PERMISSION_DENIED):
    """The key lacks the permission for this request."""


class DuplicateRequestId(ServerError, code=ErrorCode.DUPLICATE_REQUEST_ID):
    """A request with this number is still waiting on the same connection."""


class ReplyTooLarge(ServerError, code=ErrorCode.REPLY_TOO_LARGE):
    """The reply would not fit the negotiated frame size; ask for less at once."""


class QueueNotFound(ServerError, code=ErrorCode.QUEUE_NOT_FOUND):
    """The account has no queue of this name."""


class QueueExists(ServerError, code=ErrorCode.QUEUE_EXISTS):
    """A queue of this name (or a name that differs only in case) exists; ``ensure_queue`` accepts an equal queue."""


class AttributesDiffer(ServerError):
    """Root of the refusals of ``ensure``: the name exists with other attributes, and was not changed."""

    @property
    def difference(self) -> dict[str, tuple[Any, Any]]:
        """The differences: attribute, its actual value and the requested value; durations in seconds."""
        difference: Mapping[str, Mapping[str, Any]] = self.details.get("difference", {})
        changes: dict[str, tuple[Any, Any]] = {}
        for name, values in difference.items():
            actual, requested = values.get("is"), values.get("wanted")
            if name.endswith("_ms") and actual is not None and requested is not None:
                changes[name.removesuffix("_ms")] = (actual / 1000, requested / 1000)
            else:
                changes[name] = (actual, requested)
        return changes


class QueueDiffers(AttributesDiffer, code=ErrorCode.QUEUE_DIFFERS):
    """The queue exists with other attributes; ``difference`` shows them. The queue was not changed."""


class QueueDeleted(ServerError, code=ErrorCode.QUEUE_DELETED):
    """The queue was deleted while the receive waited."""


class TooManyQueues(ServerError, code=ErrorCode.TOO_MANY_QUEUES):
    """The account is at its limit of queues."""


class DeadLetterQueueInUse(ServerError, code=ErrorCode.DEAD_LETTER_QUEUE_IN_USE):
    """The queue is the dead-letter queue of the queues in ``sources`` and cannot be deleted; unbind it there first."""

    @property
    def sources(self) -> list[str]:
        """The queues that use this queue as their dead-letter queue."""
        return list(self.details.get("sources", ()))


class TimeNotRewindable(ServerError, code=ErrorCode.TIME_NOT_REWINDABLE):
    """The queue cannot be rewound to this time; ``nearest`` is the nearest possible time. No message was changed."""

    @property
    def nearest(self) -> datetime | None:
        """The nearest time to which the queue can be rewound now; None = the queue has no rewind window."""
        milliseconds = self.details.get("nearest_ms")
        return None if milliseconds is None else to_datetime(milliseconds)


class RedriveRunning(ServerError, code=ErrorCode.REDRIVE_RUNNING):
    """The queue is being redriven; wait for the end of the redrive, or cancel the redrive."""


class RedriveNotFound(ServerError, code=ErrorCode.REDRIVE_NOT_FOUND):
    """The queue has never been redriven. A server older than this error answers ``InvalidArgument``."""


class OtherShard(ServerError, code=ErrorCode.OTHER_SHARD):
    """The names of the request belong to different shards; use names of one shard."""


class NotTransactional(ServerError, code=ErrorCode.NOT_TRANSACTIONAL):
    """The queue takes no half messages: the queue was not created as ``transactional``."""


class NoDeadLetterQueue(ServerError, code=ErrorCode.NO_DEAD_LETTER_QUEUE):
    """The queue has no dead-letter queue: set its attribute ``dead_letter_queue``. The message stays in flight."""


class DeadLettersNotTaken(ServerError, code=ErrorCode.DEAD_LETTERS_NOT_TAKEN):
    """The dead-letter queue holds messages from before it became one, and takes no dead letters until these are
    consumed. The message stays in flight; try again later."""


class MessageTooLarge(ServerError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """A body is longer than the queue's limit; no message of the batch was stored. (Empty body:
    ``InvalidArgument``.) Of ``reject``: longer than the dead-letter queue's limit; the message stays in flight."""


class BatchTooLarge(ServerError, code=ErrorCode.BATCH_TOO_LARGE):
    """Bodies and headers of the batch are too large together; no message was stored. Split the batch."""


class ReceiptHandleInvalid(ServerError, code=ErrorCode.RECEIPT_HANDLE_INVALID):
    """The handle is not the newest of its message, or its visibility timeout has passed; no state was changed."""


class TooManyInFlight(ServerError, code=ErrorCode.TOO_MANY_IN_FLIGHT):
    """The queue is at its limit of messages in flight; delete or release some."""


class SequenceTooOld(ServerError, code=ErrorCode.SEQUENCE_TOO_OLD):
    """A repeated send is older than the server's memory of the session."""


class OutOfOrder(ServerError, code=ErrorCode.OUT_OF_ORDER):
    """The queue or topic does not remember the message named in ``after``; no message was stored."""


class BacklogFull(ServerError, code=ErrorCode.BACKLOG_FULL):
    """The queue is at its limit of messages; no message was stored. Of ``reject``: the dead-letter queue is, and
    the message stays in flight."""


class TransactionNotFound(ServerError, code=ErrorCode.TRANSACTION_NOT_FOUND):
    """The queue has no half message of this id: never sent, expired or cleared."""


class AlreadyCommitted(ServerError, code=ErrorCode.ALREADY_COMMITTED):
    """The half message was to be rolled back, but had been committed before; the first decision stays."""


class AlreadyRolledBack(ServerError, code=ErrorCode.ALREADY_ROLLED_BACK):
    """The half message was to be committed, but had been rolled back before; the first decision stays."""


class TopicNotFound(ServerError, code=ErrorCode.TOPIC_NOT_FOUND):
    """The account has no topic of this name."""


class TopicExists(ServerError, code=ErrorCode.TOPIC_EXISTS):
    """A topic of this name (or a name that differs only in case) exists; ``ensure_topic`` accepts an equal topic."""


class TopicDiffers(AttributesDiffer, code=ErrorCode.TOPIC_DIFFERS):
    """The topic exists with other attributes; ``difference`` shows them. The topic was not changed."""


class TopicInUse(ServerError, code=ErrorCode.TOPIC_IN_USE):
    """The topic has subscriptions and cannot be deleted; unsubscribe them first."""


class TooManyTopics(ServerError, code=ErrorCode.TOO_MANY_TOPICS):
    """The account is at its limit of topics."""


class SubscriptionNotFound(ServerError, code=ErrorCode.SUBSCRIPTION_NOT_FOUND):
    """The topic has no subscription of this name."""


class SubscriptionExists(ServerError, code=ErrorCode.SUBSCRIPTION_EXISTS):
    """A subscription of this name (or a name that differs only in case) exists; ``ensure`` accepts an equal one."""


class SubscriptionDiffers(AttributesDiffer, code=ErrorCode.SUBSCRIPTION_DIFFERS):
    """The subscription exists with other attributes; ``difference`` shows them. The subscription was not changed."""


class TooManySubscriptions(ServerError, code=ErrorCode.TOO_MANY_SUBSCRIPTIONS):
    """The topic is at its limit of subscriptions."""


class MessageNotWaiting(ServerError, code=ErrorCode.MESSAGE_NOT_WAITING):
    """The message does not wait for the subscription: delivered, dropped, older than a day, or never for it."""


class MessageNotFound(ServerError, code=ErrorCode.MESSAGE_NOT_FOUND):
    """No readable row of the server's log tells of the message, or the message is of another account."""


class MessageNotPublished(ServerError, code=ErrorCode.MESSAGE_NOT_PUBLISHED):
    """The topic does not know the message: not published there, matched no subscription, or gone from the log."""


class PushUnavailable(ServerError, code=ErrorCode.PUSH_UNAVAILABLE):
    """The server lacks the optional package for posting to URLs; the server's operator can install the package."""


class ScheduleNotFound(ServerError, code=ErrorCode.SCHEDULE_NOT_FOUND):
    """The schedule does not exist in this account."""


class ScheduleExists(ServerError, code=ErrorCode.SCHEDULE_EXISTS):
    """A schedule of this name (or a name that differs only in case) exists; ``ensure`` accepts an equal one."""


class ScheduleDiffers(AttributesDiffer, code=ErrorCode.SCHEDULE_DIFFERS):
    """The schedule exists with other values; ``difference`` shows them (of a body its size and checksum). The schedule
    was not changed."""


class TooManySchedules(ServerError, code=ErrorCode.TOO_MANY_SCHEDULES):
    """The account is at its limit of schedules, or has no memory left for another schedule."""


class AccountExists(ServerError, code=ErrorCode.ACCOUNT_EXISTS):
    """An account of this name exists."""


class AccountNotFound(ServerError, code=ErrorCode.ACCOUNT_NOT_FOUND):
    """There is no account of this name."""


class KeyNotFound(ServerError, code=ErrorCode.KEY_NOT_FOUND):
    """The account has no key of this id."""


class AccountNotEmpty(ServerError, code=ErrorCode.ACCOUNT_NOT_EMPTY):
    """The account has queues, topics or schedules; delete them first."""


class KeyExists(ServerError, code=ErrorCode.KEY_EXISTS):
    """A key of this id exists, with another secret, account, role or name; the pair was not imported."""


class LastKey(ServerError, code=ErrorCode.LAST_KEY):
    """The account's last enabled key with role ``admin`` cannot be disabled, deleted or restricted."""


class Busy(ServerError, code=ErrorCode.BUSY):
    """The server is at its limit of unwritten data; the request was not executed."""


class DiskNearlyFull(ServerError, code=ErrorCode.DISK_NEARLY_FULL):
    """The server's disk is nearly full: no message was stored. Receives and deletes still work."""


class ShuttingDown(ServerError, code=ErrorCode.SHUTTING_DOWN):
    """The server is stopping; the request was not executed. The client reconnects by itself."""


class Elsewhere(ServerError):
    """Root of the refusals with the address of another server. The request was not executed.

    The client follows them by itself. A caller sees such an error only if the patience of the call ends first.
    """

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of the leader, as the refusing server knew them; may be empty."""
        addresses = self.details.get("addresses")
        if not isinstance(addresses, list):
            return []
        return [address for address in cast("list[Any]", addresses) if isinstance(address, str)]

    @property
    def shard(self) -> int:
        """Shard of the leader's log."""
        shard = self.details.get("shard")
        return shard if isinstance(shard, int) else 0


class Standby(Elsewhere, code=ErrorCode.STANDBY):
    """The server is a standby and answers no requests."""


class Moved(Elsewhere, code=ErrorCode.MOVED):
    """Another server has the queue or topic."""


class OutcomeUnknown(ServerError, code=ErrorCode.OUTCOME_UNKNOWN):
    """The request was sent, but no reply tells the outcome: the request may have been executed, or not.

    Raised for every request that changes the server's state: at once where a repeat could do harm
    (``create_queue``, ``delete_queue``, ``clear``, creating accounts and keys ...), and for the rest (sends, publishes,
    deletes ...) when the client's repeats are used up. Check the state before you repeat the call; ``__cause__`` has
    the reason.
    """


class TooManyRequests(ServerError, code=ErrorCode.TOO_MANY_REQUESTS):
    """The account is at a limit: requests a second, waiting receives, or remembered sessions and dedup ids.

    For the last kind, ``retry_after`` is the time until the oldest entry ends; sends without a new session or dedup id
    go on.
    """


class InternalError(ServerError, code=ErrorCode.INTERNAL_ERROR):
    """The server failed in an unforeseen way; the server's log has the request id."""


class MessagesDamaged(ServerError, code=ErrorCode.MESSAGES_DAMAGED):
    """The server cannot read some requested messages from its disk; the server reports them to its operator."""


def server_error(error: Error, connection_id: int | None = None) -> ServerError:
    """Return the exception for an error frame, by its code; an unknown code becomes :class:`UnknownServerError`."""
    cls = ServerError.by_code.get(error.code, UnknownServerError)
    details = dict(error.details or {})
    parts = details.pop("sentence", None)
    text = put_together(parts, PYTHON_WORDS)
    exception = cls(
        error.text if text is None else text,
        retry_after=None if error.retry_after_ms is None else error.retry_after_ms / 1000,
        request_id=error.request_id or None,
        connection_id=connection_id,
        details=details,
    )
    # Parts of an unknown form are dropped: the text of the server stands for every face then.
    exception.parts = None if text is None else parts
    # The server's flag takes precedence, even if this version of the client has another entry for the code.
    exception.code = error.code
    exception.name = error.name
    exception.retryable = error.retryable
    return exception
