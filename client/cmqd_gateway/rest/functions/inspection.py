"""The inside of the broker: its connections, waiting receives and settings."""

from cmqd_gateway.rest.functions.queues import next_offset
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.replies import (
    ConnectionList,
    Setting,
    SettingList,
    WaitingReceiveList,
)
from cmqd_gateway.rest.types import ConnectionQuery, Nothing, WaitingReceiveQuery


async def list_connections(call: Call[ConnectionQuery, Nothing]) -> ConnectionList:
    """List the connections of the account to the broker, for the account `admin` of all accounts.

    Requests over HTTP use the connections of the gateway: a few for each key, with product `cmqd-gateway` and the
    address of the gateway.
    """
    query = call.query
    page = await call.client.connections(
        search=query.search, sort=query.sort, descending=query.descending, offset=query.offset, limit=query.limit
    )
    return ConnectionList.of(page, next_offset=next_offset(query.offset, len(page), page.total))


async def list_waiting_receives(call: Call[WaitingReceiveQuery, Nothing]) -> WaitingReceiveList:
    """List the receives that wait for messages, in order of arrival; for the account `admin` of all accounts."""
    query = call.query
    page = await call.client.waiting_receives(
        search=query.search, connection_id=query.connection, offset=query.offset, limit=query.limit
    )
    return WaitingReceiveList.of(page, next_offset=next_offset(query.offset, len(page), page.total))


async def get_settings(call: Call[Nothing, Nothing]) -> SettingList:
    """Show the settings of the broker that are in force, with default, origin and meaning. Only for `admin`."""
    return SettingList(settings=[Setting.of(setting) for setting in await call.client.settings()])
