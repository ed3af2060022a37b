"""Send a few messages, receive and delete them.

    python send_and_receive.py cmq://ID:KEY@localhost

The URL can also come from the environment variable CMQ_URL.
"""

import asyncio
import os
import sys

from cmqd_client import Outgoing, connect


async def main(url: str) -> None:
    """Send, receive and delete."""
    async with connect(url) as client:
        queue = await client.ensure_queue("example-greetings", visibility_timeout=60)

        # After the send returns, the message is on the server's disk.
        sent = await queue.send(b"hello", headers={"language": "en"})
        print(f"sent {sent.id}")
        await queue.send_batch([b"bonjour", Outgoing(b"hallo", headers={"language": "de"})])

        received = 0
        # Returns at once if there are messages; an empty list means that no message came within the wait.
        while messages := await queue.receive(16, wait=1):
            for message in messages:
                print(f"{message.id} {message.headers.get('language', '-'):2} {message.body.decode()}")
            await queue.delete_batch(messages)
            received += len(messages)
        print(f"{received} received and deleted")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["CMQ_URL"]))
