"""Consumers against a server with a clock that the test turns, behind a link that fails to order."""

import pytest

from cmqd_protocol.features import Feature
from support.client.local_server import LocalServer


@pytest.fixture
def an_older_server(server: LocalServer) -> None:
    """Deletes in requests of their own, because the server does not name the feature ``acknowledge``.

    ``test_acknowledges.py`` has the deletes that ride in receives.
    """
    server.link.features = [word for word in Feature if word is not Feature.ACKNOWLEDGE]
