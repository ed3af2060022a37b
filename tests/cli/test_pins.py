"""``cmq pin``: the standing pins of a server in the process of the test."""

from typing import Any

from cmq_cli.exitcodes import ExitCode
from cmqd_client import Client
from support.client.cmq_runs import Cmq, ThreadedServer


def test_standing_pins_are_listed_and_deleted(cmq_at: Cmq, server: ThreadedServer) -> None:
    async def set_pin(client: Client) -> None:
        pin = await client.pins.make()
        fields: dict[str, Any] = {"log_id": pin.log_id, "lsn": pin.lsn, "start": pin.start, "time": pin.time}
        await client.pins.set_standing("hourly", **fields, every=60)
        await client.pins.release(pin.pin_id)

    assert cmq_at("pin", "list", "--output", "json").json == []
    server.do(set_pin, server.local.admin)

    server.local.advance(75)
    (pin,) = cmq_at("pin", "list", "--output", "json").json
    table = cmq_at("pin", "list").out.splitlines()

    assert (pin["name"], pin["every_ms"], pin["gaps_total"]) == ("hourly", 60_000, 0)
    assert table[0].split() == ["backup", "last", "good", "copy", "every", "copied", "up", "to", "row", "gaps"]
    assert table[1].split()[0] == "hourly"
    assert table[1].split()[1:3] == ["1", "minute"]
    assert "too old" not in table[1]
    server.local.advance(180)
    assert "too old" in cmq_at("pin", "list").out
    assert cmq_at("pin", "delete", "hourly", "--yes").code == ExitCode.OK
    assert cmq_at("pin", "list", "--output", "json").json == []
    unknown = cmq_at("pin", "delete", "hourly", "--yes")
    assert unknown.code != ExitCode.OK
    assert "there is no standing pin" in unknown.err
