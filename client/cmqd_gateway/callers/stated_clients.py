"""The client behind a request, as the gateway states it to the broker: its name and its address.

The connections of the gateway are shared by all callers of a key, so each request that changes messages states its own
client. A name is the word of the caller. A text that is no possible name is fitted and not refused: the name changes no
effect of a request.
"""

import re
from collections.abc import Mapping
from typing import Final

from cmqd_client.client_names import fitting_name
from cmqd_types.actors import HOST_PATTERN, MAX_CLIENT_HOST, StatedClient

CLIENT_HEADER: Final = "X-Cmqd-Client"
"""Header with the name of the client, at every door over HTTP."""
CMQ_HEADERS: Final = (CLIENT_HEADER, "X-TC-RequestClient", "User-Agent")
"""Headers of the doors of CMQ, whose SDKs know no such header: the first that is there has the name."""
_HOST: Final = re.compile(HOST_PATTERN)


def stated_client(name: str, remote: str | None) -> StatedClient:
    """Return the client with a name, and the IP address of its connection to the gateway."""
    host = remote if remote and len(remote) <= MAX_CLIENT_HOST and _HOST.search(remote) else ""
    return StatedClient(fitting_name(name), host)


def client_of_headers(
    headers: Mapping[str, str], remote: str | None, names: tuple[str, ...] = (CLIENT_HEADER,)
) -> StatedClient:
    """Return the client of an HTTP request; the first of the headers ``names`` that is not empty has its name."""
    name = next((value for header in names if (value := headers.get(header))), "")
    return stated_client(name, remote)
