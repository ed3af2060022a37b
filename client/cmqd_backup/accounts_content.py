"""The keys in an accounts file, without their secrets: for the report of a restore."""

import hashlib

import msgspec

from cmqd_backup.moments import shown_time
from cmqd_backup.refusals import Refused


class _Key(msgspec.Struct):
    secret_id: str
    account: str
    created_ms: int
    enabled: bool = True


class _Document(msgspec.Struct):
    keys: list[_Key]


class _Sealed(msgspec.Struct):
    """The file of version 2 and later: the checksum is of the bytes of ``content``."""

    sha256: str
    content: msgspec.Raw


def keys_in(content: bytes) -> list[str]:
    """Return a line for each key. Raises Refused: the content is no accounts file, or is damaged."""
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        document = msgspec.json.decode(sealed.content, type=_Document)
    except msgspec.MsgspecError:
        # Neither the error nor its cause may be shown: both quote the file, which has secrets.
        raise Refused("the accounts file cannot be read, or has no checksum: a start of its broker adds one") from None
    if hashlib.sha256(sealed.content).hexdigest() != sealed.sha256:
        raise Refused("the accounts file does not match its checksum: it was edited, or is damaged")
    return [
        f"{key.secret_id} of {key.account}, made {shown_time(key.created_ms)}{'' if key.enabled else ', disabled'}"
        for key in document.keys
    ]
