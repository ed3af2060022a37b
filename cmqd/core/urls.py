"""Rules for the URLs of subscriptions: text alone, no look-up. The edge decides on the addresses that may be used."""

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd_types.sentences import field_name, sentence

MAX_URL_LENGTH: Final = 2_048
"""Length that servers and proxies commonly take in a request line."""

_CHARACTERS = re.compile(r"(?:[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*", re.ASCII)
"""RFC 3986 section 2, less the fragment's ``#``: programs differ in how they read other characters."""
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)
"""A host name ending in a word of this form is an IPv4 address in an old notation: 127.1, 0x7f.1, 2130706433."""


def check_url(url: str, field: str) -> str:
    """Return ``url`` if a subscription may have it: http or https, a host, no fragment and no credentials.

    Raises:
        InvalidArgument: names ``field``. A password in the URL is not repeated.
    """
    if len(url) > MAX_URL_LENGTH:
        raise _refusal(field, url, f"a URL has at most {MAX_URL_LENGTH} characters; this one has {len(url)}")
    if "#" in url:
        raise _refusal(field, url, "a URL for pushes has no fragment (#)")
    if _CHARACTERS.fullmatch(url) is None:
        text = "a URL is ASCII; write other characters percent-encoded, and in a host in its xn-- form"
        raise _refusal(field, url, text)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _refusal(field, url, "the text is not a URL") from None
    if parts.scheme not in ("http", "https"):
        raise _refusal(field, url, "a URL begins with http:// or https://")
    if "@" in parts.netloc:
        raise _refusal(field, url, "a URL for pushes has no user and no password")
    if not _is_host(parts):
        raise _refusal(field, url, "a URL has a host: a name, an IPv4 address or [an IPv6 address]")
    if not _is_port(parts):
        raise _refusal(field, url, "the port of a URL is 1 to 65535")
    return url


def _refusal(field: str, url: str, rule: str) -> InvalidArgument:
    """Return the error that names the broken rule and repeats no password."""
    url = _without_credentials(url)
    text = sentence("{} {} is refused: {}", field_name(field), shown(url), rule)
    return InvalidArgument(text, field=field, value=url, limit=rule)


def _without_credentials(url: str) -> str:
    """Return a URL without the text between its first ``//`` and its last ``@``."""
    # No regular expression: a search for both, of a URL full of slashes, would begin anew at each slash.
    start, end = url.find("//"), url.rfind("@")
    return url if start < 0 or end < start + 2 else f"{url[: start + 2]}...{url[end:]}"


def _is_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if parts.netloc.startswith("["):
        try:
            return ipaddress.IPv6Address(host).scope_id is None
        except ValueError:
            return False
    if _NAME.fullmatch(host) is None:
        return False
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]) is None:
        return True
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_port(parts: SplitResult) -> bool:
    text = re.sub(r"\A(?:\[[^\]]*\]|[^:]*)", "", parts.netloc)
    return not text or (re.fullmatch(r":[0-9]{1,5}", text, re.ASCII) is not None and 1 <= int(text[1:]) <= 65_535)
