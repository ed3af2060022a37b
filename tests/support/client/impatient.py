"""A client with little patience, for tests of waits."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from cmqd_client import Client, connect


@asynccontextmanager
async def impatient(url: str, patience: float, **options: Any) -> AsyncGenerator[Client]:
    """Open a client with this patience; the opening itself waits for as long as a busy machine needs."""
    client = connect(url, patience=patience, **options)
    await client.open(patience=300)
    try:
        yield client
    finally:
        await client.close()
