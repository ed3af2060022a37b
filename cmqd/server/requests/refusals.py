"""From the refusals of the core and the accounts to error replies. A refusal has the name of its code."""

import re
from typing import Final

from cmqd.core import domain_errors as domain
from cmqd.server.access import accounts as own
from cmqd_protocol import messages as wire
from cmqd_protocol.features import STALLED
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode

_CODES_OF_OTHER_NAMES: Final[dict[type[domain.DomainError], ErrorCode]] = {
    domain.BodyUnreadable: ErrorCode.MESSAGES_DAMAGED,
    domain.MessageDamaged: ErrorCode.MESSAGES_DAMAGED,
    domain.TooManyRemembered: ErrorCode.TOO_MANY_REQUESTS,
    domain.TooManyWaiting: ErrorCode.TOO_MANY_REQUESTS,
    own.TooManySecretsRead: ErrorCode.TOO_MANY_REQUESTS,
}


def _code_of(refusal: type[domain.DomainError]) -> ErrorCode:
    """Return the code with the name of a refusal."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", refusal.__name__).upper()
    return _CODES_OF_OTHER_NAMES.get(refusal) or ErrorCode[name]


ERROR_CODES: Final = {refusal: _code_of(refusal) for refusal in domain.DomainError.__subclasses__()}
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
