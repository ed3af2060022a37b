"""Errors of API 3.0: a code of text, on which SDKs switch, and a sentence."""

from enum import StrEnum, unique


@unique
class Code(StrEnum):
    """The codes that this gateway answers, as in the documents of API 3.0."""

    SIGNATURE_FAILURE = "AuthFailure.SignatureFailure"
    SECRET_ID_NOT_FOUND = "AuthFailure.SecretIdNotFound"
    SIGNATURE_EXPIRE = "AuthFailure.SignatureExpire"
    TOKEN_FAILURE = "AuthFailure.TokenFailure"
    UNAUTHORIZED_OPERATION = "UnauthorizedOperation"
    INVALID_ACTION = "InvalidAction"
    NO_SUCH_VERSION = "NoSuchVersion"
    MISSING_PARAMETER = "MissingParameter"
    UNKNOWN_PARAMETER = "UnknownParameter"
    INVALID_PARAMETER_VALUE = "InvalidParameterValue"
    INVALID_PARAMETER = "InvalidParameter"
    UNSUPPORTED_OPERATION = "UnsupportedOperation"
    QUEUE_NOT_FOUND = "ResourceNotFound"
    TOPIC_NOT_FOUND = "ResourceNotFound.Topic"
    SUBSCRIPTION_NOT_FOUND = "ResourceNotFound.Subscription"
    RESOURCE_IN_USE = "ResourceInUse"
    QUEUE_EXISTS = "ResourceInUse.Queue"
    TOPIC_EXISTS = "ResourceInUse.Topic"
    SUBSCRIPTION_EXISTS = "ResourceInUse.Subscription"
    TOO_MANY_QUEUES = "LimitExceeded"
    TOO_MANY_TOPICS = "LimitExceeded.Topics"
    TOO_MANY_SUBSCRIPTIONS = "LimitExceeded.Subscriptions"
    RESOURCE_UNAVAILABLE = "ResourceUnavailable"
    SEND_REFUSED = "FailedOperation.SendMsg"
    FAILED_OPERATION = "FailedOperation"
    REQUEST_LIMIT_EXCEEDED = "RequestLimitExceeded"
    INTERNAL_ERROR = "InternalError"

    @property
    def is_wrong_key(self) -> bool:
        """True for a request that proves no key; its answer comes after a pause."""
        return self.startswith("AuthFailure.")


class Fault(Exception):
    """A request was refused or failed.

    Attributes:
        code: the code of the answer.
        message: the sentence of the answer.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
