"""The HTTP load: its requests, and the reading of answers."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from cmqd_bench.http.caller import HttpCaller, HttpFailed
from cmqd_bench.http.load import Counts, Requests, cmq_requests, cycling, json_requests, text_after
from cmqd_bench.http.servers import HttpServer
from cmqd_gateway.cmq.api2.form import parse_form
from cmqd_gateway.cmq.api2.signature import sign

SERVER = HttpServer("127.0.0.1", 5681, [])


def test_requests_of_api_2_0_have_a_right_signature_and_each_a_nonce_of_its_own():
    requests = cmq_requests(SERVER, "orders", "id", "secret", 20)
    delete = requests.delete(b'{"code":0,"message":"","receiptHandle":"17"}')
    assert delete is not None

    forms = [parse_form(request.partition(b"\r\n\r\n")[2]) for request in (requests.send(), requests.receive(), delete)]

    assert [form["Action"] for form in forms] == [b"SendMessage", b"ReceiveMessage", b"DeleteMessage"]
    assert forms[2]["receiptHandle"] == b"17"
    assert len({form["Nonce"] for form in forms}) == 3
    for form in forms:
        expected = sign(form, "secret", method="POST", host="127.0.0.1:5681", path="/v2/index.php")
        assert form["Signature"].decode() == expected


def test_a_refusal_of_api_2_0_ends_the_load_but_not_an_empty_queue():
    requests = cmq_requests(SERVER, "orders", "id", "secret", 20)

    assert requests.delete(b'{"code":7000,"message":"(10200)no message"}') is None
    with pytest.raises(HttpFailed, match="4440"):
        requests.delete(b'{"code":4440,"message":"(10100)queue is not existed"}')
    with pytest.raises(HttpFailed, match="4440"):
        requests.check(b'{"code":4440,"message":"(10100)queue is not existed"}')
    requests.check(b'{"code":0,"message":""}')


def test_an_answer_without_messages_needs_no_delete():
    assert json_requests(SERVER, "orders", "id", "secret", 20).delete(b'{"messages":[]}') is None


@pytest.mark.parametrize("answer", [b'{"a":1,"receiptHandle":"17"}', b'{"receiptHandle": "17", "b": "c"}'])
def test_the_text_of_a_field_is_found(answer: bytes):
    assert text_after(answer, b'"receiptHandle":') == "17"
    assert text_after(answer, b'"missing":') is None


@asynccontextmanager
async def server_of(answers: list[bytes]) -> AsyncGenerator[tuple[HttpServer, asyncio.Queue[bytes]]]:
    """Run a server that gives these answers in turn, over and over; yields it and the paths of its requests."""
    paths: asyncio.Queue[bytes] = asyncio.Queue()
    in_turn = itertools.cycle(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                paths.put_nowait(head.split(b" ")[1])
                answer = next(in_turn)
                writer.write(answer)
                if b"connection: close" in answer.lower():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield HttpServer("127.0.0.1", server.sockets[0].getsockname()[1], []), paths


def answer(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    head = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


RECEIVED = b'{"messages":[{"receipt_handle":"5"}]}'


@pytest.mark.parametrize("fields", [(), (b"Connection: close",)])
async def test_a_cycle_sends_receives_and_deletes_in_turn_also_over_connections_that_close(fields: tuple[bytes, ...]):
    answers = [answer(b"{}", *fields), answer(RECEIVED, *fields), answer(b"", *fields, status=b"204 No Content")]
    async with server_of(answers) as (server, paths):
        failures: list[Exception] = []
        counts = Counts()

        def make(server: HttpServer) -> Requests:
            return json_requests(server, "orders", "id", "secret", 20)

        async with cycling([server], 1, make, counts, failures.append):
            # The tenth request shows that the answer to the ninth was read.
            requested = [(await paths.get()).rpartition(b"/")[2] for _ in range(10)]

        assert requested == [*[b"messages", b"receive", b"delete"] * 3, b"messages"]
        assert (counts.requests, counts.deleted) >= (9, 3)
        assert failures == []


async def test_a_refusal_by_status_ends_the_load():
    async with server_of([answer(b"gone", status=b"404 Not Found")]) as (server, _):
        failures: asyncio.Queue[Exception] = asyncio.Queue()

        def make(server: HttpServer) -> Requests:
            return json_requests(server, "orders", "id", "secret", 20)

        async with cycling([server], 1, make, Counts(), failures.put_nowait):
            assert "404 Not Found" in str(await failures.get())


async def test_an_idle_connection_that_the_server_closed_is_opened_again():
    async with server_of([answer(b"1"), answer(b"2", b"Connection: close")]) as (server, _):
        request = b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
        caller = HttpCaller(server.host, server.port)

        assert [await caller.exchange(request) for _ in range(4)] == [b"1", b"2", b"1", b"2"]

        assert caller.opened == 2
        caller.close()
