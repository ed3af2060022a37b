"""The inside of the broker: its connections, waiting receives and settings."""

from cmqd_gateway.rest.functions.queues import next_offset
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.types import (
    Connection,
    ConnectionList,
    ConnectionQuery,
    Nothing,
    Setting,
    SettingList,
    WaitingReceive,
    WaitingReceiveList,
    WaitingReceiveQuery,
)


async def list_connections(call: Call[ConnectionQuery, Nothing]) -> ConnectionList:
    """List the connections of the account to the broker, for the account `admin` of all accounts.

    Requests over HTTP use the connections of the gateway: a few for each key, with product `cmqd-gateway` and the
    address of the gateway.
    """
    query = call.query
    page = await call.client.connections(
        search=query.search, sort=query.sort, descending=query.descending, offset=query.offset, limit=query.limit
    )
    connections = [
        Connection(
            id=str(info.connection_id),
            account=info.account,
            secret_id=info.secret_id,
            peer=info.peer,
            product=info.product,
            tls=info.tls,
            since=info.since,
            last_request=info.last_request,
            requests=info.requests,
            bytes_in=info.bytes_in,
            bytes_out=info.bytes_out,
            unanswered=info.unanswered,
            waiting=info.waiting,
            unread_bytes=info.unread_bytes,
            checked_queues=info.checked_queues,
        )
        for info in page
    ]
    return ConnectionList(
        connections=connections,
        time=page.time,
        total=page.total,
        next_offset=next_offset(query.offset, len(connections), page.total),
    )


async def list_waiting_receives(call: Call[WaitingReceiveQuery, Nothing]) -> WaitingReceiveList:
    """List the receives that wait for messages, in order of arrival; for the account `admin` of all accounts."""
    query = call.query
    page = await call.client.waiting_receives(
        search=query.search, connection_id=query.connection, offset=query.offset, limit=query.limit
    )
    receives = [
        WaitingReceive(
            account=info.account,
            queue=info.queue,
            connection=str(info.connection_id),
            secret_id=info.secret_id,
            peer=info.peer,
            product=info.product,
            max_messages=info.max_messages,
            since=info.since,
            until=info.until,
        )
        for info in page
    ]
    return WaitingReceiveList(
        receives=receives,
        time=page.time,
        total=page.total,
        next_offset=next_offset(query.offset, len(receives), page.total),
    )


async def get_settings(call: Call[Nothing, Nothing]) -> SettingList:
    """Show the settings of the broker that are in force, with default, origin and meaning. Only for `admin`."""
    return SettingList(
        settings=[
            Setting(
                name=info.name,
                section=info.section,
                value=info.value,
                default=info.default,
                origin=info.origin,
                place=info.place,
                meaning=info.meaning,
                allowed=info.allowed,
            )
            for info in await call.client.settings()
        ]
    )
