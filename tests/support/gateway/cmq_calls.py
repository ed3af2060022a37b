"""Calls of API 2.0 through a gateway, with an expected answer.

    calls = CmqCalls(rig)
    await calls.ok("CreateQueue", queueName="jobs")         the fields of the answer; a refusal fails the test
    await calls.refused("CreateQueue", queueName="jobs")    the refusal; another answer fails the test

A list becomes ``name.1``, ``name.2`` ...
"""

from typing import Any, cast

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.reasons import Reason
from support.gateway.gateway_rig import GatewayRig


class Refused:
    """An answer with an error."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.code: int = answer.pop("code")
        self.message: str = answer.pop("message")
        self.fields = answer
        reasons = [reason for reason in Reason if reason.code == self.code and self._has_text_of(reason)]
        assert len(reasons) == 1, f"{self.code} {self.message}"
        (self.reason,) = reasons

    def _has_text_of(self, reason: Reason) -> bool:
        text = f"({reason.module}){reason.text}"
        return self.message == text or self.message.startswith(f"{text}: ")


class CmqCalls:
    """Calls with a key; by default the admin's."""

    def __init__(self, rig: GatewayRig, *, key: KeySecret | None = None) -> None:
        self.rig = rig
        self.first_index = 1
        self._key = key

    async def answer(self, action: str, /, **parameters: Any) -> dict[str, Any]:
        """Return the answer to an action without the request's number."""
        flat: dict[str, Any] = {"Action": action}
        for name, value in parameters.items():
            if isinstance(value, list):
                entries = enumerate(cast("list[Any]", value), self.first_index)
                flat |= {f"{name}.{index}": entry for index, entry in entries}
            else:
                flat[name] = value
        answer = await self.rig.post(self.rig.sign(flat, key=self._key or self.rig.own_key))
        assert len(answer.pop("requestId")) == 24
        return answer

    async def ok(self, action: str, /, **parameters: Any) -> dict[str, Any]:
        """Return the fields of an answer without an error."""
        answer = await self.answer(action, **parameters)
        assert (answer.pop("code"), answer.pop("message")) == (0, ""), answer
        return answer

    async def refused(self, action: str, /, **parameters: Any) -> Refused:
        """Return the refusal of an action."""
        answer = await self.answer(action, **parameters)
        assert answer["code"] != 0, answer
        return Refused(answer)
