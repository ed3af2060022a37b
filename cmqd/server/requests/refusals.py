"""From the refusals of the core and the accounts to error replies: one table of wire codes."""

from typing import Final

from cmqd.core import domain_errors as domain
from cmqd.server.access import accounts as own
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.features import STALLED
from cmqd_protocol.messages import error

ERROR_CODES: Final[dict[type[domain.DomainError], ErrorCode]] = {
    domain.InvalidArgument: ErrorCode.INVALID_ARGUMENT,
    domain.QueueNotFound: ErrorCode.QUEUE_NOT_FOUND,
    domain.QueueExists: ErrorCode.QUEUE_EXISTS,
    domain.QueueDiffers: ErrorCode.QUEUE_DIFFERS,
    domain.QueueDeleted: ErrorCode.QUEUE_DELETED,
    domain.TooManyQueues: ErrorCode.TOO_MANY_QUEUES,
    domain.DeadLetterQueueInUse: ErrorCode.DEAD_LETTER_QUEUE_IN_USE,
    domain.TimeNotRewindable: ErrorCode.TIME_NOT_REWINDABLE,
    domain.RedriveRunning: ErrorCode.REDRIVE_RUNNING,
    domain.NotTransactional: ErrorCode.NOT_TRANSACTIONAL,
    domain.MessageTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    domain.BatchTooLarge: ErrorCode.BATCH_TOO_LARGE,
    domain.TooManyWaiting: ErrorCode.TOO_MANY_REQUESTS,
    domain.ReceiptHandleInvalid: ErrorCode.RECEIPT_HANDLE_INVALID,
    domain.RedriveNotFound: ErrorCode.REDRIVE_NOT_FOUND,
    domain.NoDeadLetterQueue: ErrorCode.NO_DEAD_LETTER_QUEUE,
    domain.DeadLettersNotTaken: ErrorCode.DEAD_LETTERS_NOT_TAKEN,
    domain.BodyUnreadable: ErrorCode.MESSAGES_DAMAGED,
    domain.TooManyInFlight: ErrorCode.TOO_MANY_IN_FLIGHT,
    domain.BacklogFull: ErrorCode.BACKLOG_FULL,
    domain.SequenceTooOld: ErrorCode.SEQUENCE_TOO_OLD,
    domain.OutOfOrder: ErrorCode.OUT_OF_ORDER,
    domain.TooManyRemembered: ErrorCode.TOO_MANY_REQUESTS,
    domain.TransactionNotFound: ErrorCode.TRANSACTION_NOT_FOUND,
    domain.AlreadyCommitted: ErrorCode.ALREADY_COMMITTED,
    domain.AlreadyRolledBack: ErrorCode.ALREADY_ROLLED_BACK,
    domain.MessageDamaged: ErrorCode.MESSAGES_DAMAGED,
    domain.TopicNotFound: ErrorCode.TOPIC_NOT_FOUND,
    domain.TopicExists: ErrorCode.TOPIC_EXISTS,
    domain.TopicDiffers: ErrorCode.TOPIC_DIFFERS,
    domain.TopicInUse: ErrorCode.TOPIC_IN_USE,
    domain.TooManyTopics: ErrorCode.TOO_MANY_TOPICS,
    domain.SubscriptionNotFound: ErrorCode.SUBSCRIPTION_NOT_FOUND,
    domain.SubscriptionExists: ErrorCode.SUBSCRIPTION_EXISTS,
    domain.SubscriptionDiffers: ErrorCode.SUBSCRIPTION_DIFFERS,
    domain.MessageNotWaiting: ErrorCode.MESSAGE_NOT_WAITING,
    domain.MessageNotPublished: ErrorCode.MESSAGE_NOT_PUBLISHED,
    domain.TooManySubscriptions: ErrorCode.TOO_MANY_SUBSCRIPTIONS,
    domain.ScheduleNotFound: ErrorCode.SCHEDULE_NOT_FOUND,
    domain.ScheduleExists: ErrorCode.SCHEDULE_EXISTS,
    domain.ScheduleDiffers: ErrorCode.SCHEDULE_DIFFERS,
    domain.TooManySchedules: ErrorCode.TOO_MANY_SCHEDULES,
    own.PushUnavailable: ErrorCode.PUSH_UNAVAILABLE,
    own.AccountExists: ErrorCode.ACCOUNT_EXISTS,
    own.AccountNotFound: ErrorCode.ACCOUNT_NOT_FOUND,
    own.KeyNotFound: ErrorCode.KEY_NOT_FOUND,
    own.KeyExists: ErrorCode.KEY_EXISTS,
    own.LastKey: ErrorCode.LAST_KEY,
    own.TooManySecretsRead: ErrorCode.TOO_MANY_REQUESTS,
    own.AccountNotEmpty: ErrorCode.ACCOUNT_NOT_EMPTY,
    own.PermissionDenied: ErrorCode.PERMISSION_DENIED,
}
"""The code of every refusal; a test compares the table with the core's closed set."""

BUSY_RETRY_MS: Final = 100
"""A commit takes milliseconds, so within this time the storage has caught up or is in trouble."""
DISK_RETRY_MS: Final = 5_000
"""Space on a disk comes back when consumers delete messages or an operator frees space."""
STALLED_RETRY_MS: Final = 1_000
"""A storage that hangs for longer than ``storage_patience_ms`` does not recover within milliseconds."""
RATE_RETRY_MS: Final = 1_000


def stalled_error(request_id: int, code: ErrorCode, text: str, retry_after_ms: int = STALLED_RETRY_MS) -> wire.Error:
    """Return a refusal of a server with a storage that does not answer: the client looks for another leader.

    Ordinary back-pressure has the same codes, and passes within milliseconds.
    """
    return error(request_id, code, text, retry_after_ms=retry_after_ms, details={STALLED: True})


def error_reply(request_id: int, refusal: domain.DomainError) -> wire.Error:
    """Return the error reply for a refusal, and take the traceback from the refusal.

    Every refusal of the core becomes a reply here. The frames of its traceback hold the request with its bodies, and
    some of these frames hold the refusal (a list of replies, a variable that is raised): a cycle that only a garbage
    collection would find, in a process that seldom collects garbage. A refusal needs no traceback: it is no bug, and no
    log line shows where it was raised.
    """
    refusal.__traceback__ = refusal.__context__ = refusal.__cause__ = None
    code = ERROR_CODES.get(type(refusal), ErrorCode.INTERNAL_ERROR)
    details = refusal.details
    if refusal.sentence is not None:
        details = {**details, "sentence": refusal.sentence.parts}
    return error(request_id, code, refusal.text, retry_after_ms=refusal.retry_after_ms, details=details or None)
