"""The inside of the broker: its connections, waiting receives and settings; and the gateway's clients of CMQ's TCP
protocol."""

from datetime import UTC, datetime

from cmqd_gateway.rest.functions.queues import next_offset
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.problems import of_code
from cmqd_gateway.rest.replies import (
    CmqTcpClient,
    CmqTcpClientList,
    ConnectionList,
    ConsumerList,
    Setting,
    SettingList,
    WaitingReceiveList,
)
from cmqd_gateway.rest.types import CmqTcpClientQuery, ConnectionQuery, ConsumerQuery, Nothing, WaitingReceiveQuery
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.keys import EVERY_NAME, Role


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


async def list_consumers(call: Call[ConsumerQuery, Nothing]) -> ConsumerList:
    """List the clients that receive from queues, in order of queue and name; for the account `admin` of all accounts.

    A consumer asked its queue for messages within the last hour, or holds messages of the queue. Figures count since
    the start of the broker.
    """
    query = call.query
    page = await call.client.consumers(queue=query.queue, search=query.search, offset=query.offset, limit=query.limit)
    return ConsumerList.of(page, next_offset=next_offset(query.offset, len(page), page.total))


async def list_cmq_tcp_clients(call: Call[CmqTcpClientQuery, Nothing]) -> CmqTcpClientList:
    """List the clients of CMQ's TCP protocol at this gateway, the first to connect first.

    The clients of the account that have logged in, for a key of `admin` with the pattern `*` of all accounts. Each
    gateway lists its own clients.
    """
    own, query, gateway = await call.client.accounts.own_key(), call.query, call.gateway
    if Role.MANAGE not in own.roles:
        text = f"key {own.secret_id!r} may not make list_cmq_tcp_clients: the operation needs role {Role.MANAGE}"
        raise of_code(ErrorCode.PERMISSION_DENIED, text)
    sees_all = own.is_admin and EVERY_NAME[0] in own.names
    search, since = query.search.casefold(), gateway.wall_clock() - gateway.now()
    found = [
        (connection, key)
        for connection in gateway.cmq_tcp or ()
        if (key := connection.key) is not None
        and (sees_all or key.account == own.account)
        and (
            not search
            or search in f"{key.account} {key.secret_id} {connection.client_id} {connection.remote}".casefold()
        )
    ]
    clients = [
        CmqTcpClient(
            account=key.account,
            secret_id=key.secret_id,
            client_id=connection.client_id,
            peer=connection.remote or "",
            since=datetime.fromtimestamp(since + connection.opened_at, UTC),
            requests=len(connection.requests),
        )
        for connection, key in found[query.offset : query.offset + query.limit]
    ]
    return CmqTcpClientList(
        clients=clients,
        total=len(found),
        time=datetime.fromtimestamp(gateway.wall_clock(), UTC),
        is_served=gateway.cmq_tcp is not None,
        next_offset=next_offset(query.offset, len(clients), len(found)),
    )


async def get_settings(call: Call[Nothing, Nothing]) -> SettingList:
    """Show the settings of the broker that are in force, with default, origin and meaning. Only for `admin`."""
    return SettingList(settings=[Setting.of(setting) for setting in await call.client.settings()])
