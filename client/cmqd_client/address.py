"""The address of a server with the key of the caller: the URL
``cmq://SECRET_ID:SECRET_KEY@host:port[?region=..&tls=1]``.
"""

from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

DEFAULT_PORT = 5680

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL. ``str()`` and ``repr()`` leave the secret key out; :meth:`url` has it."""

    secret_id: str
    secret_key: str
    host: str
    port: int = DEFAULT_PORT
    region: str | None = None
    """Connect only if the server serves this region; None = any region."""
    tls: bool = False

    def url(self) -> str:
        """Return the URL for :func:`parse_address`, secret key included."""
        return self._url(quote(self.secret_key, safe=""))

    def _url(self, shown_key: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        options = {"region": self.region, "tls": "1" if self.tls else None}
        query = urlencode({name: value for name, value in options.items() if value is not None})
        url = f"cmq://{quote(self.secret_id, safe='')}:{shown_key}@{host}:{self.port}"
        return f"{url}/?{query}" if query else url

    def __str__(self) -> str:
        return self._url("***")

    def __repr__(self) -> str:
        return f"Address({self})"


def parse_address(url: str) -> Address:
    """Read a URL.

    Raises:
        ValueError: the URL is not a complete ``cmq://`` URL. The text never holds the secret key.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # urlsplit's own texts quote the malformed part of the URL, which may be the secret.
        raise ValueError("the server's URL is malformed; it has the form cmq://ID:KEY@host:port") from None
    if parts.scheme != "cmq":
        raise ValueError(
            f"the server's URL must start with cmq://, not {parts.scheme + '://' if parts.scheme else 'this'}"
        )
    if not parts.username or not parts.password:
        raise ValueError("the server's URL names no key pair: cmq://ID:KEY@host:port")
    if not parts.hostname:
        raise ValueError("the server's URL names no host: cmq://ID:KEY@host:port")
    if parts.path not in ("", "/"):
        raise ValueError(f"the server's URL has the path {parts.path!r}; it must have none")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    region = options.pop("region", None)
    tls = options.pop("tls", "0").lower()
    if tls not in _TRUE | _FALSE:
        raise ValueError(f"tls is {tls!r} in the server's URL; it must be 1 or 0")
    if options:
        raise ValueError(f"the server's URL has the unknown option {min(options)!r}; known are region and tls")
    return Address(
        secret_id=unquote(parts.username),
        secret_key=unquote(parts.password),
        host=parts.hostname,
        port=DEFAULT_PORT if port is None else port,
        region=region or None,
        tls=tls in _TRUE,
    )
