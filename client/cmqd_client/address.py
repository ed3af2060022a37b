"""The address of a server with the key of the caller: the URL
``cmq://SECRET_ID:SECRET_KEY@host:port[,host:port...][?region=..&tls=1&name=..]``.

Several hosts are addresses of one service, such as a server and its standby; see ``cmqd_client.links.hosts_in_turn``.
"""

from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from cmqd_client.client_names import checked_name

DEFAULT_PORT = 5680

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL. ``str()`` and ``repr()`` leave the secret key out; :meth:`url` has it."""

    secret_id: str
    secret_key: str
    host: str
    port: int = DEFAULT_PORT
    others: tuple[tuple[str, int], ...] = ()
    """Hosts and ports to try in turn when ``host`` does not answer."""
    region: str | None = None
    """Connect only if the server serves this region; None = any region."""
    tls: bool = False
    name: str | None = None
    """Name of the client; None = as the program says."""

    def each(self) -> "list[Address]":
        """Return an address without ``others`` for every host, in their order."""
        hosts = [(self.host, self.port), *self.others]
        return [msgspec.structs.replace(self, host=host, port=port, others=()) for host, port in hosts]

    def url(self) -> str:
        """Return the URL for :func:`parse_address`, secret key included."""
        return self._url(quote(self.secret_key, safe=""))

    def _url(self, shown_key: str) -> str:
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in ((self.host, self.port), *self.others)
        )
        options = {"region": self.region, "tls": "1" if self.tls else None, "name": self.name}
        query = urlencode({name: value for name, value in options.items() if value is not None})
        url = f"cmq://{quote(self.secret_id, safe='')}:{shown_key}@{hosts}"
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
    except ValueError:
        # urlsplit's own texts quote the malformed part of the URL, which may be the secret.
        raise ValueError(_MALFORMED) from None
    if parts.scheme != "cmq":
        raise ValueError(
            f"the server's URL must start with cmq://, not {parts.scheme + '://' if parts.scheme else 'this'}"
        )
    if not parts.username or not parts.password:
        raise ValueError("the server's URL names no key pair: cmq://ID:KEY@host:port")
    (host, port), *others = [host_and_port(text) for text in parts.netloc.rpartition("@")[2].split(",")]
    if parts.path not in ("", "/"):
        raise ValueError(f"the server's URL has the path {parts.path!r}; it must have none")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    region = options.pop("region", None)
    tls = options.pop("tls", "0").lower()
    if tls not in _TRUE | _FALSE:
        raise ValueError(f"tls is {tls!r} in the server's URL; it must be 1 or 0")
    name = options.pop("name", None)
    if options:
        raise ValueError(f"the server's URL has the unknown option {min(options)!r}; known are region, tls and name")
    return Address(
        secret_id=unquote(parts.username),
        secret_key=unquote(parts.password),
        host=host,
        port=port,
        others=tuple(others),
        region=region or None,
        tls=tls in _TRUE,
        name=None if name is None else checked_name(name),
    )


_MALFORMED = "the server's URL is malformed; it has the form cmq://ID:KEY@host:port"


def host_and_port(text: str) -> tuple[str, int]:
    """Read ``host``, ``host:port`` or ``[IPv6 address]:port``.

    Raises:
        ValueError: the text has another form.
    """
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_MALFORMED) from None
    if not host:
        raise ValueError("the server's URL names no host: cmq://ID:KEY@host:port[,host:port]")
    return host, DEFAULT_PORT if port is None else port
