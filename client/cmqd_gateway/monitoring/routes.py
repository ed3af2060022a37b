"""The routes of monitoring: ``/metrics``, ``/healthz`` and ``/readyz``.

``/metrics`` is read with the key of its request. The key needs the role ``read`` and the pattern ``*``; a key of
``admin`` sees all accounts and the broker, any other key its own account. With the setting ``metrics_key_file`` the
gateway reads with the key of the file, and requests need no key; the settings refuse such a key without
``metrics_listen``. With ``metrics_listen`` the route exists on the listener for metrics alone.

``/healthz`` says that the loop of the broker turns; of a gateway that no broker runs, that its own does. ``/readyz``
says that the gateway accepts requests, and that the broker answers and is not cut off from its log;
``/readyz?role=leader`` says the same of a leader alone, for load balancers. Both reveal no more, and need no key.
"""

from collections.abc import Iterable
from functools import partial

from aiohttp import web

from cmqd_client.errors import CmqError, PermissionDenied, UnknownOperation
from cmqd_gateway.broker.broker_connections import TooManyKeysInUse
from cmqd_gateway.callers.caller import NotAuthenticated, key_of_authorization
from cmqd_gateway.callers.key_secrets import KeySecret, TooManyUnknownIds
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.monitoring.collector import CONTENT_TYPE, own_exposition
from cmqd_gateway.monitoring.own_metrics import own_metrics


def routes(gateway: Gateway, *, with_metrics: bool) -> Iterable[web.AbstractRouteDef]:
    """Return the routes of a listener."""
    monitoring = _Monitoring(gateway)
    yield web.get("/healthz", monitoring.healthz)
    yield web.get("/readyz", monitoring.readyz)
    if with_metrics:
        yield web.get("/metrics", monitoring.metrics)


class _Monitoring:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer 200 if the loop of the broker turns, else 503."""
        if self._gateway.readiness.is_silent:
            return _text(503, "the broker stands still")
        return _text(200, "ok")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 if the gateway accepts requests and the broker is ready, else 503; reason and role in the body."""
        readiness = self._gateway.readiness
        reason = "the gateway is shutting down" if self._gateway.is_draining else await readiness.reason()
        if not reason and any(role != readiness.role for role in request.query.getall("role", [])):
            reason = f"the broker is a {readiness.role}"
        return _text(503 if reason else 200, f"{reason or 'ready'}\nrole: {readiness.role}")

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with the figures in the format of Prometheus."""
        gateway = self._gateway
        try:
            key = gateway.metrics_key or await key_of_authorization(
                gateway.secrets, request.headers.get("Authorization"), request.remote
            )
            if not gateway.rates.take(key.secret_id):
                return _text(429, "the key is over its limit of requests")
            text = await gateway.figures.get(_reader_of(key), partial(gateway.connections.client, key))
        except NotAuthenticated as refusal:
            await gateway.pause_refusal(request, refusal)
            headers = {"WWW-Authenticate": 'Bearer realm="cmqd"'}
            return _text(401, str(refusal), headers)
        except PermissionDenied as refusal:
            return _text(403, str(refusal))
        except (TooManyKeysInUse, TooManyUnknownIds):
            return _text(503, "the gateway has no room for this key at the moment")
        except UnknownOperation:
            return _text(503, "the broker is older than this gateway and has no metrics")
        except CmqError:
            # Without a line in the log: strangers may ask while the broker is away. The cache logs failed readings.
            return _text(503, "the broker does not answer")
        return web.Response(
            body=text + own_exposition(own_metrics(gateway)),
            headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"},
        )


def _reader_of(key: KeySecret) -> str:
    """Return the name of a key in the cache. With its secret: a changed secret must not find the figures of before."""
    return f"{key.secret_id}:{hash(key.secret_key)}"


def _text(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        text=f"{text}\n",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} | (headers or {}),
    )
