"""The signature of API 2.0: a keyed hash over method, host, path and all parameters but the signature itself.

    POST host /v2/index.php ? Action=SendMessage & Nonce=1 & ... & queueName=orders

The path is the path of the request: ``/v2/index.php``, or ``/`` in newer SDKs. Parameters are sorted by the bytes of
their names; after sorting, ``_`` in a name becomes ``.``. Values are the decoded bytes. On POST, some SDKs sign without
the parameters that have a value beginning with ``@``, and some SDKs sign with them: both signatures are accepted.

The text is weaker than it looks, and a machine on the way can change a captured request within it. Values that begin
with ``@`` can be added and replaced where the signature leaves such values out. And the text has no escapes: a value
with ``&`` and ``=`` can be read as several parameters, and several parameters as one. Therefore the identity of a
request is its signature, never its parameters (:mod:`cmqd_gateway.cmq.api2.repeats`), and ``other_reading`` finds the
requests whose text could have been signed for another queue or topic.
"""

import base64
import hmac
from collections.abc import Iterable, Mapping, Sequence

SIGNATURE = "Signature"
BODY = "msgBody"
SHA256 = "HmacSHA256"
_NAMES_OF_SHA256 = frozenset({SHA256.encode(), b"sha256"})
"""The second name is that of CMQ's TCP SDK, in the part that manages queues over HTTP."""
_TARGETS = (b"&queueName=", b"&topicName=")


def unsigned_names(
    form: Mapping[str, bytes], secret_key: str, *, method: str, hosts: Iterable[str], path: str
) -> Sequence[str] | None:
    """Return the parameters that the signature of a request leaves out, if it is right for any of the hosts.

    The time tells nothing about the secret or a right signature: all wrong signatures take the same time.

    Args:
        form: all parameters of the request, ``Signature`` included.
        secret_key: secret part of the key that the request names.
        method: ``GET`` or ``POST``.
        hosts: names of the gateway that the client may have signed.
        path: path of the URL.

    Returns:
        None if the signature is wrong; no names if it covers all parameters.
    """
    given = form.get(SIGNATURE, b"")
    algorithm = _algorithm(form)
    key = secret_key.encode()
    names = _signed_names(form)
    unsigned = [name for name in names if form[name].startswith(b"@")] if method == "POST" else []
    variants: list[tuple[Sequence[str], bytes]] = [((), _joined(form, names))]
    if unsigned:
        variants.append((unsigned, _joined(form, [name for name in names if not form[name].startswith(b"@")])))
    for host in hosts:
        start = f"{method}{host}{path}?".encode(errors="surrogateescape")
        for left_out, text in variants:
            # In one call: the object of hmac.new takes longer than hashing the usual request.
            signature = hmac.digest(key, start + text, algorithm)
            if hmac.compare_digest(base64.b64encode(signature), given):
                return left_out
    return None


def is_body(name: str, body: str = BODY) -> bool:
    """Return True for a parameter with a body of a message: ``msgBody``, ``msgBody.0`` ..."""
    return name.partition(".")[0] == body


def other_reading(form: Mapping[str, bytes], body: str = BODY, targets: Sequence[bytes] = _TARGETS) -> str | None:
    """Return a parameter of a send or publish that could have been other parameters when the text was signed.

    A body may have any bytes, ``&queueName=other`` among them. Read as a parameter, these bytes send the rest of the
    body to another queue, where the broker does not know the send. The name of the first queue then stands in the value
    or in the name of another parameter, so such values and names are refused.

    Args:
        form: the parameters.
        body: name of the parameter with bodies.
        targets: begins of parameters with the name of a queue or topic.
    """
    if body not in form and not any(is_body(name, body) for name in form):
        return None
    for name, value in form.items():
        if "&" in name or "=" in name:
            return name
        if b"&" in value and not is_body(name, body) and any(target in value for target in targets):
            return name
    return None


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


def is_host(host: str) -> bool:
    """Return True for a Host header without the characters that end a host in the signed text.

    With such characters a host could stand for host, path and parameters of a captured request, and what a body of that
    request says for the parameters.
    """
    return "/" not in host and "?" not in host


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
