"""The check of a signed form against the hosts of a request; a large form is hashed in a thread.

API 3.0 has forms with the same signature.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from aiohttp import web

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api2.form import Form
from cmqd_gateway.cmq.api2.signature import is_host, signed_hosts, unsigned_names
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.turns import HASHED_AT_ONCE, THREAD_BYTES


def possible_hosts(gateway: Gateway, request: web.Request) -> Iterator[str]:
    """Yield the hosts that the client may have signed: the ``Host`` header first, which almost all clients sign."""
    host = request.headers.get("Host", "")
    yield host
    ports = (gateway.port_of(request), 443 if request.scheme == "https" else 80)
    yield from signed_hosts(host, gateway.settings.public_names, ports)[1:]


async def unsigned_of(gateway: Gateway, request: web.Request, form: Form, key: KeySecret) -> Sequence[str] | None:
    """Return the parameters that the signature leaves out; None if the signature is wrong."""
    check = partial(unsigned_names, form, key.secret_key, method=request.method, path=request.path)
    size = sum(map(len, form.values()))
    host = request.headers.get("Host", "")
    if not is_host(host):
        return None
    is_small = size < THREAD_BYTES
    possible = possible_hosts(gateway, request)
    if is_small and (unsigned := check(hosts=[next(possible)])) is not None:
        return unsigned
    hosts = list(possible)
    # A wrong signature is hashed for every host, with and without the values that begin with "@".
    if is_small and 2 * size * len(hosts) <= HASHED_AT_ONCE:
        return check(hosts=hosts)
    return await gateway.hashes.run(partial(check, hosts=hosts))
