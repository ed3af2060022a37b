"""A producer of half messages over CMQ's TCP protocol, which answers checks when a test says so."""

from cmqd_gateway.cmq.tcp import commands
from support.gateway.tcp_program import Reply, TcpProgram


class TcpProducer(TcpProgram):
    """A program with half messages in the queue ``tx``."""

    async def half(self, *bodies: bytes, interval: int = 0, queue: str = "tx", request_id: int = 0) -> list[int]:
        """Send half messages, and return their ids."""
        reply = await self.ok(
            commands.BATCH_SEND,
            queueName=queue,
            msgBody=list(bodies or [b"a"]),
            isTransaction=1,
            firstQueryInterval=interval,
            request_id=request_id,
        )
        return reply.ids

    async def decide(self, state: int, *ids: int, queue: str = "tx") -> Reply:
        """Decide messages, and return the answer."""
        items = [{"msgId": message_id, "state": state} for message_id in ids]
        return await self.ask(commands.DECIDE, queueName=queue, item=items)

    async def commit(self, *ids: int) -> None:
        """Commit messages."""
        assert (await self.decide(commands.COMMIT, *ids)).result == 0

    async def check(self) -> int:
        """Return the message of the next check of the queue."""
        push = next((reply for reply in self.kept if reply.cmd == commands.CHECK), None)
        if push is None:
            push = await self.next()
        else:
            self.kept.remove(push)
        assert push.cmd == commands.CHECK, push
        assert push.seqno > 0
        body = push.body("check")
        assert body["queueName"] == "tx"
        return int(body["msgId"])

    @property
    def unread_checks(self) -> int:
        """Number of checks that came beside the answers of requests."""
        return sum(reply.cmd == commands.CHECK for reply in self.kept)
