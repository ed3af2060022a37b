"""The gateway's own metrics: API 3.0 and ignored keys, with bounded labels."""

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.monitoring.own_metrics import own_metrics
from support.gateway.api3_requests import Api3Calls
from support.gateway.gateway_rig import GatewayRig


def figures(rig: GatewayRig) -> dict[str, float]:
    """The samples by name without prefix and labels, ``name label label``."""
    return {
        " ".join([sample.name.removeprefix("cmqd_gateway_"), *sample.labels.values()]): sample.value
        for family in own_metrics(rig.gateway)
        for sample in family.samples
    }


async def test_requests_of_api_3_are_counted_by_action_and_code_and_unknown_actions_share_a_label() -> None:
    async with GatewayRig() as rig:
        calls = Api3Calls(rig)
        await calls.ok("SendCmqMsg", QueueName="orders", MsgContent="x", DelaySeconds=0)
        await calls.fault("SendCmqMsg", QueueName="nowhere", MsgContent="x", DelaySeconds=0)
        await calls.send(calls.prepare("SendCmqMsg", {}, version="2000-01-01"))
        await calls.send(calls.prepare("SendCmqMsg", {}, key=KeySecret(rig.own_key.secret_id, "wrong")))
        for number in range(50):
            await calls.fault(f"Unknown{number}")

        counted = {name: value for name, value in figures(rig).items() if name.startswith("api3_")}

        assert counted == {
            "api3_requests_total SendCmqMsg OK": 1,
            "api3_requests_total SendCmqMsg ResourceNotFound": 1,
            "api3_requests_total SendCmqMsg NoSuchVersion": 1,
            "api3_requests_total SendCmqMsg AuthFailure.SignatureFailure": 1,
            "api3_requests_total other InvalidAction": 50,
        }


async def test_ignored_routing_keys_are_counted_by_door() -> None:
    async with GatewayRig() as rig:
        await rig.server.admin.create_topic("news")
        await rig.call("PublishMessage", topicName="news", msgBody="x", routingKey="a.b")

        found = figures(rig)

        assert [found[f"keys_ignored_total {door}"] for door in ("api2", "api3", "tcp")] == [1, 0, 0]
