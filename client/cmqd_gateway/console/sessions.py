"""Sessions of browsers: a signed cookie in place of the key, which the browser never keeps.

    sign-in with a key pair ───────┐
    sign-in link of ``cmq console`` ┴─► session: a cookie (see ``signed_texts``) and a token against forged requests

The cookie is HttpOnly and SameSite=Strict, and Secure over HTTPS. A request with the cookie that is not a GET needs
the header ``X-CSRF-Token`` too, which a page of another site cannot know.

A session ends 30 minutes after its last request, 12 hours after the sign-in, at the sign-out, or with its key. The
gateway keeps no table of sessions, only the nonces of signed-out sessions and of used links, as long as their texts
would be valid. These nonces are the gateway's own: after a sign-out the browser drops the cookie, but a copy of the
cookie would be taken by another gateway, or by this gateway after a restart, until the session ends. A used link is
refused after a restart too, because a link must be younger than the gateway.
"""

import hmac
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from cmqd_gateway.callers.caller import NotAuthenticated
from cmqd_gateway.callers.key_secrets import KeySecret, KeySecrets
from cmqd_gateway.console.signed_texts import SIGN_IN_SECONDS, Purpose, SignedText, mac_of, read, sign

SESSION_SECONDS: Final = 12 * 3600
"""Longest time of a session."""
IDLE_SECONDS: Final = 30 * 60
"""Time without requests after which a session ends."""
RENEW_SECONDS: Final = 60
"""Age of a cookie from which an answer brings a new cookie. A cookie with each answer would cost a MAC each."""
CSRF_HEADER: Final = "X-CSRF-Token"
FUTURE_SECONDS: Final = 60
"""How far the begin of a session may lie ahead of this gateway's clock: the clocks of gateways differ."""
MAX_NONCES: Final = 10_000
MAX_NONCES_OF_ACCOUNT: Final = 1_000

_ENDED: Final = "the session has ended; sign in again"


class SessionEnded(NotAuthenticated):
    """The cookie proves no session, or no longer."""

    def __init__(self, text: str = _ENDED) -> None:
        """Make an error; the text is for the caller."""
        super().__init__(text)


class Session(msgspec.Struct, frozen=True):
    """A session that has been checked."""

    key: KeySecret
    text: SignedText

    @property
    def csrf_token(self) -> str:
        """The token that requests with the cookie need, except GET; the same for the whole session."""
        return mac_of(Purpose.CSRF, self.key.secret_key, self.text.nonce)

    def is_csrf_token(self, token: str) -> bool:
        """Return True for the token of this session; takes the same time for every token."""
        return hmac.compare_digest(self.csrf_token.encode(), token.encode(errors="surrogateescape"))


class Nonces:
    """Nonces that must not be used again, each until its text ends.

    An account has a share. An account that is over its share loses nonces of its own, first those of the signer: a key
    can void its own sign-outs and no sign-out of another account. All accounts together have a bound too, and the
    account with the most nonces pays for it.
    """

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._accounts: dict[str, dict[str, dict[str, float]]] = {}
        """By account and signer: the nonces with their ends, the oldest first."""
        self._sizes: Counter[str] = Counter()
        """Number of nonces of each account."""

    def __len__(self) -> int:
        return self._sizes.total()

    def has(self, key: KeySecret, nonce: str) -> bool:
        """Return True if the nonce of a text of this key is kept."""
        return nonce in self._accounts.get(_account_of(key), {}).get(key.secret_id, {})

    def add(self, key: KeySecret, nonce: str, ends: float, *, replaces: bool) -> bool:
        """Keep a nonce until this time.

        Args:
            key: the signer of the text.
            nonce: the nonce of the text.
            ends: the end of the text.
            replaces: True = a full share loses its oldest nonce for this one; False = it takes no other nonce.

        Returns:
            False if the nonce is there already, or if the share is full.
        """
        account = _account_of(key)
        if self.has(key, nonce):
            return False
        if self._sizes[account] >= MAX_NONCES_OF_ACCOUNT:
            self._drop_ended(account)
        if self._sizes[account] >= MAX_NONCES_OF_ACCOUNT:
            if not replaces:
                return False
            self._drop_oldest(account, key.secret_id)
        self._accounts.setdefault(account, {}).setdefault(key.secret_id, {})[nonce] = ends
        self._sizes[account] += 1
        if len(self) > MAX_NONCES:
            for other in list(self._accounts):
                self._drop_ended(other)
        if len(self) > MAX_NONCES:
            ((largest, _),) = self._sizes.most_common(1)
            self._drop_oldest(largest, key.secret_id)
        return True

    def _drop_ended(self, account: str) -> None:
        now = self._wall_clock()
        for signer, nonces in list(self._accounts.get(account, {}).items()):
            self._set(account, signer, {nonce: end for nonce, end in nonces.items() if end > now})

    def _drop_oldest(self, account: str, signer: str) -> None:
        signers = self._accounts[account]
        if signer not in signers:
            signer = max(signers, key=lambda secret_id: len(signers[secret_id]))
        nonces = dict(signers[signer])
        del nonces[next(iter(nonces))]
        self._set(account, signer, nonces)

    def _set(self, account: str, signer: str, nonces: dict[str, float]) -> None:
        signers = self._accounts[account]
        self._sizes[account] += len(nonces) - len(signers[signer])
        signers[signer] = nonces
        if not nonces:
            del signers[signer]
        if not signers:
            del self._accounts[account], self._sizes[account]


def _account_of(key: KeySecret) -> str:
    return key.account or key.secret_id


class Sessions:
    """The sessions of a gateway; see the module."""

    def __init__(self, secrets: KeySecrets, wall_clock: Callable[[], float]) -> None:
        """Make the object.

        Args:
            secrets: the secrets of keys.
            wall_clock: the time of day, in seconds since 1970.
        """
        self._secrets = secrets
        self._wall_clock = wall_clock
        self._began = wall_clock()
        self._signed_out = Nonces(wall_clock)
        self._used_links = Nonces(wall_clock)

    def begin(self, key: KeySecret) -> Session:
        """Return a new session of a key that its caller has proved."""
        now = int(self._wall_clock())
        return Session(key, sign(Purpose.SESSION, key.secret_id, key.secret_key, now, now + IDLE_SECONDS))

    async def find(self, cookie: str, address: str | None) -> Session:
        """Return the session of a cookie. Safe to cancel.

        Args:
            cookie: the value of the cookie.
            address: IP address of the client; see :meth:`KeySecrets.find`.

        Raises:
            SessionEnded: the cookie is malformed, forged or too old, or its key is disabled or has another secret.
            TooManyUnknownIds, CmqError: see :meth:`KeySecrets.find`.
        """
        text = read(cookie)
        # The times come first: an old cookie of a deleted key must not cost a question to the broker. A key signs any
        # times: a session that begins in the far future would keep its place among the nonces for as long.
        now = self._wall_clock()
        if (
            text is None
            or text.began > now + FUTURE_SECONDS
            or text.ends > text.began + SESSION_SECONDS
            or now >= text.ends
        ):
            raise SessionEnded
        key = await self._signer(text, Purpose.SESSION, address)
        if key is None or self._signed_out.has(key, text.nonce):
            raise SessionEnded
        return Session(key, text)

    async def find_by_link(self, token: str, address: str | None) -> KeySecret:
        """Return the key that made a sign-in link; the link cannot be used again. Safe to cancel.

        Raises:
            NotAuthenticated: the link is malformed, forged, too old, or was used; the text says which.
            TooManyUnknownIds, CmqError: see :meth:`KeySecrets.find`.
        """
        text = read(token)
        key = None if text is None else await self._signer(text, Purpose.SIGN_IN, address)
        if text is None or key is None:
            raise NotAuthenticated("the sign-in link is wrong; make another with cmq console")
        now = self._wall_clock()
        if text.ends - text.began > SIGN_IN_SECONDS or not text.began - SIGN_IN_SECONDS <= now < text.ends:
            raise NotAuthenticated(
                f"the sign-in link is valid for {SIGN_IN_SECONDS} s only; make another with cmq console, and compare "
                "the clocks of the two machines if the next link is refused too"
            )
        if text.began < int(self._began):
            # Its use may have been forgotten with the start.
            raise NotAuthenticated("the sign-in link is older than this gateway; make another with cmq console")
        if not self._used_links.add(key, text.nonce, text.ends, replaces=False):
            raise NotAuthenticated("the sign-in link has been used already; make another with cmq console")
        return key

    def renewed(self, session: Session) -> Session | None:
        """Return the session with a later end, None while its cookie is young enough."""
        text, key = session.text, session.key
        now = int(self._wall_clock())
        ends = min(now + IDLE_SECONDS, text.began + SESSION_SECONDS)
        if ends - text.ends < RENEW_SECONDS:
            return None
        return Session(key, sign(Purpose.SESSION, key.secret_id, key.secret_key, text.began, ends, text.nonce))

    def end(self, session: Session) -> None:
        """Sign out: refuse all cookies of the session at this gateway, as long as its account keeps to its share of
        the nonces."""
        self._signed_out.add(session.key, session.text.nonce, session.text.began + SESSION_SECONDS, replaces=True)

    async def _signer(self, text: SignedText, purpose: Purpose, address: str | None) -> KeySecret | None:
        """Return the key that signed a text, None if there is none or it is disabled."""
        key = await self._secrets.find(text.secret_id, address)
        # Compared also for an unknown id: the time of the answer must not distinguish unknown ids from forged texts.
        is_signed = text.is_signed(purpose, "" if key is None else key.secret_key)
        return key if key is not None and is_signed and key.enabled else None


# ---------------------------------------------------------------- the cookie


def session_cookie(request: web.BaseRequest) -> str | None:
    """Return the value of the cookie of a request, None without one."""
    return request.cookies.get(_cookie_name(request))


def set_session_cookie(request: web.BaseRequest, response: web.StreamResponse, session: Session) -> None:
    """Add the cookie to an answer. The cookie ends with the browser, and its text earlier."""
    secure = _is_secure(request)
    response.set_cookie(
        _cookie_name(request), str(session.text), path="/", httponly=True, samesite="Strict", secure=secure
    )


def delete_session_cookie(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Delete the cookie by an answer."""
    secure = _is_secure(request)
    response.del_cookie(_cookie_name(request), path="/", httponly=True, samesite="Strict", secure=secure)


def _cookie_name(request: web.BaseRequest) -> str:
    """Return the name of the cookie, with the port: all ports of a host share their cookies, and so would gateways."""
    _, _, port = request.host.rpartition(":")
    # The header may have any characters, and the name of a cookie may not.
    name = f"cmqd_session_{port}" if port.isascii() and port.isdecimal() else "cmqd_session"
    # Browsers take a cookie with this prefix from this host alone, and with the attribute Secure only.
    return f"__Host-{name}" if _is_secure(request) else name


def _is_secure(request: web.BaseRequest) -> bool:
    """Return True if the browser uses HTTPS, up to the gateway or up to a proxy before it."""
    return request.secure or request.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"
