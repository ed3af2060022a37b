"""The signature of API 2.0: a keyed hash over method, host, path and all parameters but the signature itself.

    POST host /v2/index.php ? Action=SendMessage & Nonce=1 & ... & queueName=orders

The path is the path of the request: ``/v2/index.php``, or ``/`` in newer SDKs. Parameters are sorted by the bytes of
their names; after sorting, ``_`` in a name becomes ``.``. Values are the decoded bytes. On POST, some SDKs sign without
the parameters that have a value beginning with ``@``, and some SDKs sign with them: both signatures are accepted.
"""

import base64
import hmac
from collections.abc import Iterable, Mapping

SIGNATURE = "Signature"
SHA256 = "HmacSHA256"
_NAMES_OF_SHA256 = frozenset({SHA256.encode(), b"sha256"})
"""The second name is that of CMQ's TCP SDK, in the part that manages queues over HTTP."""


def is_signed(form: Mapping[str, bytes], secret_key: str, *, method: str, hosts: Iterable[str], path: str) -> bool:
    """Return True if the signature of a request is right for any of the hosts.

    The time tells nothing about the secret or a right signature: all wrong signatures take the same time.

    Args:
        form: all parameters of the request, ``Signature`` included.
        secret_key: secret part of the key that the request names.
        method: ``GET`` or ``POST``.
        hosts: names of the gateway that the client may have signed.
        path: path of the URL.
    """
    given = form.get(SIGNATURE, b"")
    algorithm = _algorithm(form)
    key = secret_key.encode()
    names = _signed_names(form)
    parameters = [_joined(form, names)]
    if method == "POST":
        without = [name for name in names if not form[name].startswith(b"@")]
        if len(without) < len(names):
            parameters.append(_joined(form, without))
    for host in hosts:
        start = f"{method}{host}{path}?".encode(errors="surrogateescape")
        for text in parameters:
            # In one call: the object of hmac.new takes longer than hashing the usual request.
            signature = hmac.digest(key, start + text, algorithm)
            if hmac.compare_digest(base64.b64encode(signature), given):
                return True
    return False


def sign(form: Mapping[str, bytes], secret_key: str, *, method: str, host: str, path: str) -> str:
    """Return the signature of a request to another endpoint, over all its parameters; arguments as above."""
    text = f"{method}{host}{path}?".encode() + _joined(form, _signed_names(form))
    return base64.b64encode(hmac.digest(secret_key.encode(), text, _algorithm(form))).decode()


def _algorithm(form: Mapping[str, bytes]) -> str:
    # Absent and other methods mean SHA-1, as at CMQ.
    return "sha256" if form.get("SignatureMethod") in _NAMES_OF_SHA256 else "sha1"


def _signed_names(form: Mapping[str, bytes]) -> list[str]:
    # Text sorts by code points, and UTF-8 keeps their order: no encoded names are needed.
    names = sorted(form)
    if SIGNATURE in form:
        names.remove(SIGNATURE)
    return names


def _joined(form: Mapping[str, bytes], names: Iterable[str]) -> bytes:
    return b"&".join([name.replace("_", ".").encode() + b"=" + form[name] for name in names])


def signed_hosts(host: str, public_names: Iterable[str], ports: Iterable[int]) -> list[str]:
    """Return the hosts that the signed string may have: the Host header and all public names, with and without port.

    Args:
        host: the Host header.
        public_names: names of the setting.
        ports: ports of the gateway for its clients: the port of the listener, and the default of the scheme.
    """
    name, own_port = _without_port(host)
    possible_ports = [own_port] if own_port else [str(port) for port in ports]
    hosts = [host, name, *(f"{name}:{port}" for port in possible_ports)]
    for public_name in public_names:
        bare, public_port = _without_port(public_name)
        hosts += [public_name, bare]
        if not public_port:
            hosts += [f"{bare}:{port}" for port in possible_ports]
    return list(dict.fromkeys(hosts))


def _without_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and port.isascii() and port.isdigit() and name else (host, "")
