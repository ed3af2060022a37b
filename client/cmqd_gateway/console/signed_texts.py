"""Texts that prove a key without its secret: the tokens of sessions and of sign-in links.

    BEGAN.ENDS.NONCE.MAC.SECRET_ID       times in seconds since 1970; the id in base64url; the MAC in hex

The MAC is HMAC-SHA256 with the secret of the key, over the purpose and the other fields. Each purpose has texts of its
own: a sign-in link is no session, and a token against forged requests is neither. No table of texts is kept, so
a text is valid at every gateway and after a restart, and ends when its key is disabled, deleted or gets a new secret.

``cmq`` makes the tokens of sign-in links, so this module needs the standard library alone.
"""

import base64
import binascii
import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SIGN_IN_SECONDS: Final = 60
"""Time for which a sign-in link is valid, from its making by the clock of its maker."""
MAX_CHARACTERS: Final = 512
_NONCE_BYTES: Final = 16
_MAX_TIME_DIGITS: Final = 12


class Purpose(StrEnum):
    """The use of a text; a part of the signed bytes."""

    SESSION = "session"
    SIGN_IN = "sign-in"
    CSRF = "csrf"


@dataclass(frozen=True, slots=True)
class SignedText:
    """The fields of a text; a text that was read is not checked yet."""

    secret_id: str
    began: int
    ends: int
    nonce: str
    mac: str

    def is_signed(self, purpose: Purpose, secret_key: str) -> bool:
        """Return True if the text was made for this purpose with this secret; takes the same time for every MAC."""
        expected = mac_of(purpose, secret_key, str(self.began), str(self.ends), self.nonce, self.secret_id)
        return hmac.compare_digest(expected, self.mac)

    def __str__(self) -> str:
        encoded = base64.urlsafe_b64encode(self.secret_id.encode()).decode().rstrip("=")
        return f"{self.began}.{self.ends}.{self.nonce}.{self.mac}.{encoded}"

    def __repr__(self) -> str:
        # The text is as good as the key until it ends.
        return f"SignedText({self.secret_id!r}, ends={self.ends})"


def sign(
    purpose: Purpose, secret_id: str, secret_key: str, began: int, ends: int, nonce: str | None = None
) -> SignedText:
    """Make a text; without a nonce it gets a random one."""
    nonce = nonce or secrets.token_hex(_NONCE_BYTES)
    mac = mac_of(purpose, secret_key, str(began), str(ends), nonce, secret_id)
    return SignedText(secret_id, began, ends, nonce, mac)


def read(text: str) -> SignedText | None:
    """Return the fields of a text, unchecked; None for a malformed text."""
    fields = text.split(".")
    if len(text) > MAX_CHARACTERS or not text.isascii() or len(fields) != 5:
        return None
    began, ends, nonce, mac, encoded = fields
    if not all(time.isdecimal() and len(time) <= _MAX_TIME_DIGITS for time in (began, ends)):
        return None
    try:
        secret_id = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return SignedText(secret_id, int(began), int(ends), nonce, mac) if secret_id and nonce else None


def mac_of(purpose: Purpose, secret_key: str, *fields: str) -> str:
    """Return the MAC of fields in hex."""
    signed = "\0".join(["cmqd console", purpose, *fields])
    return hmac.new(secret_key.encode(), signed.encode(), "sha256").hexdigest()


def sign_in_token(secret_id: str, secret_key: str, now: float) -> str:
    """Return the token of a sign-in link, valid once within ``SIGN_IN_SECONDS`` from ``now``, seconds since 1970."""
    return str(sign(Purpose.SIGN_IN, secret_id, secret_key, int(now), int(now) + SIGN_IN_SECONDS))
