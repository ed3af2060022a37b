"""The signature of API 2.0: a keyed hash over method, host, path and all parameters but the signature itself.

    POST host /v2/index.php ? Action=SendMessage & Nonce=1 & ... & queueName=orders

Parameters are sorted by the bytes of their names; after sorting, ``_`` in a name becomes ``.``. Values are the decoded
bytes. On POST, some SDKs sign without the parameters that have a value beginning with ``@``, and some SDKs sign with
them: both signatures are accepted.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping

SIGNATURE = "Signature"
SHA256 = "HmacSHA256"


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
    # Absent and other methods mean SHA-1, as at CMQ.
    algorithm = hashlib.sha256 if form.get("SignatureMethod") == SHA256.encode() else hashlib.sha1
    key = secret_key.encode()
    names = sorted(form.keys() - {SIGNATURE}, key=str.encode)
    parameters = [_joined(form, names)]
    if method == "POST":
        without = [name for name in names if not form[name].startswith(b"@")]
        if len(without) < len(names):
            parameters.append(_joined(form, without))
    for text in parameters:
        for host in hosts:
            mac = hmac.new(key, f"{method}{host}{path}?".encode(errors="surrogateescape"), algorithm)
            mac.update(text)
            if hmac.compare_digest(base64.b64encode(mac.digest()), given):
                return True
    return False


def sign(form: Mapping[str, bytes], secret_key: str, *, method: str, host: str, path: str) -> str:
    """Return the signature of a request to another endpoint, over all its parameters; arguments as above."""
    algorithm = hashlib.sha256 if form.get("SignatureMethod") == SHA256.encode() else hashlib.sha1
    mac = hmac.new(secret_key.encode(), f"{method}{host}{path}?".encode(), algorithm)
    mac.update(_joined(form, sorted(form.keys() - {SIGNATURE}, key=str.encode)))
    return base64.b64encode(mac.digest()).decode()


def _joined(form: Mapping[str, bytes], names: Iterable[str]) -> bytes:
    return b"&".join(name.replace("_", ".").encode() + b"=" + form[name] for name in names)


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
