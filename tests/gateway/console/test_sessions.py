"""Sessions of browsers: signing in and out, forged and old cookies, keys that change, requests by other sites."""

import asyncio
import io
import json
import logging
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.callers.caller import NotAuthenticated
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.console import sessions as sessions_module
from cmqd_gateway.console.sessions import (
    FUTURE_SECONDS,
    IDLE_SECONDS,
    MAX_NONCES,
    MAX_NONCES_OF_ACCOUNT,
    SESSION_SECONDS,
    Nonces,
    SessionEnded,
)
from cmqd_gateway.console.signed_texts import SIGN_IN_SECONDS, Purpose, SignedText, read, sign
from cmqd_gateway.rest.table import BASE
from support.cases import each_case
from support.eventually import eventually
from support.gateway.event_stream import EventStream
from support.gateway.gateway_rig import GatewayRig
from support.gateway.rest_calls import RestCalls

PATH = "/console/session"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    set_cookies: list[str]
    body: Any

    @property
    def name(self) -> str:
        return self.body["name"]


class Browser:
    """A browser: keeps its cookies, and sends the session's token as the console's pages do."""

    def __init__(self, rig: GatewayRig) -> None:
        self.rig = rig
        self.cookies: dict[str, str] = {}
        self.headers: dict[str, str] = {"Sec-Fetch-Site": "same-origin"}

    async def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        sent = dict(self.headers) | dict(headers or {})
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        data = None if body is None else io.BytesIO(raw)
        url = f"http://{self.rig.host}{path}"
        async with self.rig.session.request(method, url, data=data, headers=sent) as response:
            content = await response.read()
            set_cookies = response.headers.getall("Set-Cookie", [])
            for line in set_cookies:
                (morsel,) = SimpleCookie(line).values()
                if morsel["max-age"] == "0":
                    self.cookies.pop(morsel.key, None)
                else:
                    self.cookies[morsel.key] = morsel.value
            return Answer(response.status, response.headers, set_cookies, json.loads(content) if content else None)

    async def sign_in(self, key: KeySecret | None = None) -> Answer:
        used = self.rig.own_key if key is None else key
        answer = await self.send("POST", PATH, {"secret_id": used.secret_id, "secret_key": used.secret_key})
        if answer.status == 200:
            self.headers["X-CSRF-Token"] = answer.body["csrf_token"]
        return answer

    @property
    def cookie(self) -> str:
        (value,) = self.cookies.values()
        return value

    def replace_cookie(self, value: str) -> None:
        (name,) = self.cookies
        self.cookies[name] = value


@pytest.fixture
async def browser(rig: GatewayRig) -> Browser:
    return Browser(rig)


@pytest.fixture
async def signed_in(browser: Browser) -> Browser:
    assert (await browser.sign_in()).status == 200
    return browser


def link(rig: GatewayRig, *, began: float = 0, seconds: int = SIGN_IN_SECONDS, key: KeySecret | None = None) -> str:
    """Return the token of a sign-in link that was made ``began`` seconds after now."""
    used = rig.own_key if key is None else key
    now = int(rig.gateway.wall_clock() + began)
    return str(sign(Purpose.SIGN_IN, used.secret_id, used.secret_key, now, now + seconds))


# ---------------------------------------------------------------- signing in


async def test_a_session_names_the_address_of_the_broker_for_programs(rig: GatewayRig, browser: Browser):
    answer = await browser.sign_in()

    assert answer.body["broker"] == {"address": (await rig.server.admin.status())["address"], "tls": False}


async def test_a_key_pair_opens_a_session_that_the_json_api_accepts(browser: Browser):
    answer = await browser.sign_in()

    assert answer.body["key"] == {
        "secret_id": browser.rig.own_key.secret_id,
        "account": "admin",
        "roles": answer.body["key"]["roles"],
        "names": ["*"],
        "is_admin": True,
        "region": answer.body["key"]["region"],
    }
    assert (answer.body["signed_in"], answer.headers["Cache-Control"]) == (True, "no-store")
    assert (await browser.send("GET", f"{BASE}/queues")).status == 200
    created = await browser.send("PUT", f"{BASE}/queues/bills")
    assert created.status == 201
    assert (await browser.send("GET", PATH)).body == answer.body


async def test_the_cookie_is_for_this_site_and_not_for_scripts(browser: Browser):
    (line,) = (await browser.sign_in()).set_cookies
    (morsel,) = SimpleCookie(line).values()

    assert morsel.key == f"cmqd_session_{browser.rig.http_server.addresses[0][1]}"
    assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "Strict", "/")
    assert (morsel["max-age"], morsel["expires"], morsel["domain"], morsel["secure"]) == ("", "", "", "")


async def test_the_cookie_is_secure_behind_a_proxy_with_https(browser: Browser):
    browser.headers["X-Forwarded-Proto"] = "https"
    (line,) = (await browser.sign_in()).set_cookies
    (morsel,) = SimpleCookie(line).values()

    assert morsel["secure"] is True
    assert morsel.key.startswith("__Host-cmqd_session")
    assert (await browser.send("GET", f"{BASE}/queues")).status == 200


@pytest.mark.parametrize("host", ["x", "x:", "[::1]", "x:5681x", "x:\u0663", "x:5\u0663", "a:b:c", ":"])
async def test_a_strange_host_makes_no_strange_cookie(host: str, rig: GatewayRig):
    request = make_mocked_request("GET", "/", headers={"Host": host})
    response = web.Response()

    sessions_module.set_session_cookie(request, response, rig.console.sessions.begin(rig.own_key))

    assert list(response.cookies) == ["cmqd_session"]


async def test_without_a_session_the_page_learns_so_without_an_error(browser: Browser):
    answer = await browser.send("GET", PATH)

    assert (answer.status, answer.body["signed_in"], answer.body["key"]) == (200, False, None)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"secret_id": "x"},
        {"secret_key": "x"},
        {"secret_id": "x", "secret_key": "y", "token": "z"},
        {"secret_id": 1, "secret_key": "y"},
        {"token": ["x"]},
        {"unknown": 1},
        [],
        b"{",
        b"\xff",
    ],
)
async def test_a_malformed_sign_in_is_refused(body: Any, browser: Browser):
    answer = await browser.send("POST", PATH, body)

    assert answer.status == 400
    assert browser.cookies == {}


async def test_a_form_of_a_page_cannot_sign_in(browser: Browser):
    """The page of another site could sign a browser in with a key of its own, and read the data that is typed there."""
    key = browser.rig.own_key
    body = json.dumps({"secret_id": key.secret_id, "secret_key": key.secret_key}).encode()
    form = await browser.send("POST", PATH, body, {"Content-Type": "text/plain"})
    cross = await browser.send("POST", PATH, body, {"Sec-Fetch-Site": "cross-site"})

    assert (form.status, form.name) == (415, "unsupported_media_type")
    assert (cross.status, cross.name) == (403, "cross_site_request")
    assert browser.cookies == {}


async def test_a_sign_in_that_is_too_large_is_refused(browser: Browser):
    answer = await browser.send("POST", PATH, {"secret_id": "x" * 5_000, "secret_key": "y"})

    assert (answer.status, answer.name) == (413, "request_too_large")


async def test_wrong_pairs_are_refused_alike_and_without_the_secret(browser: Browser):
    key = browser.rig.own_key
    answers = [
        await browser.send("POST", PATH, {"secret_id": secret_id, "secret_key": secret_key})
        for secret_id, secret_key in (
            (key.secret_id, key.secret_key + "x"),
            (key.secret_id, "é"),
            ("AKIDnone", key.secret_key),
            (key.secret_key, key.secret_id),
        )
    ]

    assert {answer.status for answer in answers} == {401}
    assert len({json.dumps(answer.body) for answer in answers}) == 1
    assert key.secret_key not in json.dumps(answers[0].body)
    assert browser.cookies == {}


@pytest.mark.parametrize("which", ["a pair", "a cookie", "a cookie of the page"])
async def test_wrong_sign_ins_wait_as_wrong_keys_do(which: str):
    async with GatewayRig(wrong_key_pause_seconds=60) as rig:
        body = json.dumps({"secret_id": rig.own_key.secret_id, "secret_key": "wrong"})
        cookie = f"Cookie: cmqd_session={sign(Purpose.SESSION, rig.own_key.secret_id, 'wrong', 0, 1 << 35)}"
        head, content = {
            "a pair": (f"POST {PATH} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}", body),
            "a cookie": (f"GET {BASE}/queues HTTP/1.1\r\n{cookie}", ""),
            "a cookie of the page": (f"GET {PATH} HTTP/1.1\r\n{cookie}", ""),
        }[which]
        _, writer = await rig.open_raw()
        # Twice: the second refusal waits behind the first.
        writer.write(f"{head}\r\nHost: x\r\n\r\n{content}".encode() * 2)

        await eventually(lambda: rig.console.paused_refusals == 1)

        assert rig.gateway.bodies.bytes_in_use == 0
        # A client that leaves does not wait.
        writer.transport.abort()
        await eventually(lambda: rig.console.paused_refusals == 0)


async def test_a_disabled_key_cannot_sign_in(browser: Browser):
    disabled = browser.rig.add_key("AKIDoff", "secret", enabled=False)

    assert (await browser.sign_in(disabled)).status == 401


async def test_while_the_broker_is_away_the_answer_says_so(browser: Browser):
    browser.rig.table.failure = ServerUnreachable("gone")

    answer = await browser.sign_in()

    assert answer.status == 503
    assert browser.cookies == {}


# ---------------------------------------------------------------- the end of a session


async def test_a_sign_out_ends_the_session_for_a_copy_of_the_cookie_too(signed_in: Browser):
    copy = dict(signed_in.cookies)
    refused = await signed_in.send("DELETE", PATH, headers={"X-CSRF-Token": ""})
    answer = await signed_in.send("DELETE", PATH)

    assert (refused.status, refused.name) == (403, "wrong_csrf_token")
    assert (answer.status, answer.body["signed_in"]) == (200, False)
    assert signed_in.cookies == {}
    signed_in.cookies = copy
    after = await signed_in.send("GET", f"{BASE}/queues")
    assert (after.status, after.name) == (401, "session_ended")
    # Harmless when repeated.
    assert (await signed_in.send("DELETE", PATH)).status == 200


async def test_a_session_ends_after_its_idle_time(signed_in: Browser):
    signed_in.rig.wall_offset += IDLE_SECONDS + 1

    answer = await signed_in.send("GET", f"{BASE}/queues")

    assert (answer.status, answer.name) == (401, "session_ended")
    shown = await signed_in.send("GET", PATH)
    assert (shown.status, shown.body["signed_in"], signed_in.cookies) == (200, False, {})


async def test_requests_renew_a_session_up_to_its_longest_time(signed_in: Browser):
    first = signed_in.cookie
    assert (await signed_in.send("GET", f"{BASE}/queues")).set_cookies == [], "a young cookie stays"
    token = signed_in.headers["X-CSRF-Token"]
    step = IDLE_SECONDS - 10
    for _ in range(SESSION_SECONDS // step):
        signed_in.rig.wall_offset += step
        assert (await signed_in.send("GET", f"{BASE}/queues")).status == 200
    assert signed_in.cookie != first
    shown = await signed_in.send("GET", PATH)
    assert shown.body["csrf_token"] == token, "the token is the same for the whole session"
    signed_in.rig.wall_offset += step

    assert (await signed_in.send("GET", f"{BASE}/queues")).status == 401


async def test_an_old_cookie_of_a_renewed_session_stays_valid_until_its_end(signed_in: Browser):
    """A page makes several requests at once; the answer to one must not sign the others out."""
    first = dict(signed_in.cookies)
    signed_in.rig.wall_offset += IDLE_SECONDS - 10
    await signed_in.send("GET", f"{BASE}/queues")
    signed_in.cookies = first

    assert (await signed_in.send("GET", f"{BASE}/queues")).status == 200


async def test_a_new_secret_a_disabled_and_a_deleted_key_end_their_sessions(rig: GatewayRig):
    for change in ("rotated", "disabled", "deleted"):
        browser = Browser(rig)
        made = await RestCalls(rig).ok("create_key")
        key = rig.add_key(made.key.secret_id, made.secret_key)
        assert (await browser.sign_in(key)).status == 200
        assert (await browser.send("GET", f"{BASE}/queues")).status == 200
        if change == "deleted":
            del rig.table.keys[key.secret_id]
        else:
            secret = "another" if change == "rotated" else key.secret_key
            rig.add_key(key.secret_id, secret, enabled=change == "rotated")
        # As the broker's push does.
        rig.key_changed(key.secret_id)

        answer = await browser.send("GET", f"{BASE}/queues")

        assert (answer.status, answer.name) == (401, "session_ended"), change


async def test_a_restarted_gateway_accepts_the_sessions(signed_in: Browser):
    rig = signed_in.rig
    restarted = sessions_module.Sessions(rig.gateway.secrets, rig.gateway.wall_clock)

    session = await restarted.find(signed_in.cookie, None)

    assert session.key == rig.own_key
    assert session.is_csrf_token(signed_in.headers["X-CSRF-Token"])


def tampered(text: str) -> dict[str, str]:
    fields = text.split(".")

    def with_field(index: int, value: str) -> str:
        return ".".join([*fields[:index], value, *fields[index + 1 :]])

    return {
        "an earlier begin": with_field(0, str(int(fields[0]) + 1)),
        "a later end": with_field(1, str(int(fields[1]) + 3600)),
        "another nonce": with_field(2, "0" * 32),
        "another mac": with_field(3, "0" * 64),
        "no mac": with_field(3, ""),
        "another key": with_field(4, "QUtJRG90aGVy"),
        "an id that is no text": with_field(4, "_w"),
        "no id": with_field(4, ""),
        "a field less": ".".join(fields[:4]),
        "a field more": f"{text}.",
        "upper case": with_field(3, fields[3].upper()),
        "a sign": with_field(0, f"+{fields[0]}"),
        "a digit of another script": with_field(0, "\u0663"),
        "a huge number": with_field(1, "9" * 400),
        "a long text": text + "A" * 600,
        "empty": "",
        "bytes that are no text": "\udcff",
    }


@each_case("which", list(tampered("1.2.n.m.eA")))
async def test_a_forged_cookie_is_refused(which: str, rig: GatewayRig):
    sessions = rig.console.sessions
    rig.add_key("AKIDother", "secret")
    text = str(sessions.begin(rig.own_key).text)
    await sessions.find(text, None)

    with pytest.raises(NotAuthenticated):
        await sessions.find(tampered(text)[which], None)


async def test_a_text_of_another_purpose_is_no_session(rig: GatewayRig):
    key, now = rig.own_key, int(rig.gateway.wall_clock())
    for purpose in (Purpose.SIGN_IN, Purpose.CSRF):
        text = sign(purpose, key.secret_id, key.secret_key, now, now + 60)
        with pytest.raises(NotAuthenticated):
            await rig.console.sessions.find(str(text), None)


async def test_an_old_cookie_asks_the_broker_for_no_key(signed_in: Browser):
    rig = signed_in.rig
    rig.wall_offset += IDLE_SECONDS
    rig.gateway.secrets.forget()
    rig.table.questions.clear()

    assert (await signed_in.send("GET", f"{BASE}/queues")).status == 401
    assert rig.table.questions == []


# ---------------------------------------------------------------- other sites


@pytest.mark.parametrize("token", [None, "", "0" * 64, "é"])
async def test_a_change_with_the_cookie_needs_the_token_of_the_session(token: str | None, signed_in: Browser):
    # A browser without this header gives no other hint.
    del signed_in.headers["Sec-Fetch-Site"]
    del signed_in.headers["X-CSRF-Token"]
    headers = {} if token is None else {"X-CSRF-Token": token}
    await signed_in.rig.server.put("orders", b"kept")

    for method, path in (("POST", "/queues/orders/clear"), ("DELETE", "/queues/orders"), ("PUT", "/queues/new")):
        answer = await signed_in.send(method, BASE + path, headers=headers)
        assert (answer.status, answer.name) == (403, "wrong_csrf_token")
    assert await signed_in.rig.server.bodies("orders") == [b"kept"]
    assert (await signed_in.send("GET", f"{BASE}/queues")).body["names"] == ["orders"]


async def test_the_token_of_another_session_is_wrong(signed_in: Browser):
    other = Browser(signed_in.rig)
    await other.sign_in()

    answer = await signed_in.send("PUT", f"{BASE}/queues/new", headers={"X-CSRF-Token": other.headers["X-CSRF-Token"]})

    assert (answer.status, answer.name) == (403, "wrong_csrf_token")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_cannot_use_the_session(site: str, signed_in: Browser):
    for method, path in (("GET", f"{BASE}/queues"), ("PUT", f"{BASE}/queues/new"), ("GET", PATH), ("DELETE", PATH)):
        answer = await signed_in.send(method, path, headers={"Sec-Fetch-Site": site})
        assert (answer.status, answer.name) == (403, "cross_site_request")


async def test_a_key_in_the_header_comes_before_the_cookie(signed_in: Browser):
    key = signed_in.rig.own_key
    del signed_in.headers["X-CSRF-Token"]
    right = {"Authorization": f"Bearer {key.secret_id}:{key.secret_key}"}

    assert (await signed_in.send("PUT", f"{BASE}/queues/new", headers=right)).status == 201
    assert (await signed_in.send("GET", f"{BASE}/queues", headers={"Authorization": "Bearer a:b"})).status == 401


# ---------------------------------------------------------------- sign-in links


async def test_a_link_signs_in_once(browser: Browser):
    token = link(browser.rig)
    answer = await browser.send("POST", PATH, {"token": token})
    again = await Browser(browser.rig).send("POST", PATH, {"token": token})

    assert (answer.status, answer.body["key"]["secret_id"]) == (200, browser.rig.own_key.secret_id)
    assert (again.status, again.name) == (401, "unauthorized")
    assert "has been used already" in again.body["detail"]
    assert (await browser.send("GET", f"{BASE}/queues")).status == 200


async def test_of_two_sign_ins_with_a_link_at_once_only_one_succeeds(rig: GatewayRig):
    token = link(rig)
    rig.gateway.secrets.forget()

    answers = await asyncio.gather(*(Browser(rig).send("POST", PATH, {"token": token}) for _ in range(4)))

    assert sorted(answer.status for answer in answers) == [200, 401, 401, 401]


@pytest.mark.parametrize(
    ("made", "seconds", "word"),
    [
        (-SIGN_IN_SECONDS, SIGN_IN_SECONDS, "valid for 60 s"),
        (SIGN_IN_SECONDS + 5, SIGN_IN_SECONDS, "valid for 60 s"),
        (0, SIGN_IN_SECONDS + 1, "valid for 60 s"),
    ],
)
async def test_a_link_that_is_too_old_or_too_long_is_refused(made: int, seconds: int, word: str, browser: Browser):
    browser.rig.wall_offset += 3_600
    answer = await browser.send("POST", PATH, {"token": link(browser.rig, began=made, seconds=seconds)})

    assert (answer.status, answer.body["field"]) == (401, "token")
    assert word in answer.body["detail"]


async def test_a_link_from_before_the_start_of_the_gateway_is_refused(browser: Browser):
    """The gateway of before the restart may have taken it."""
    answer = await browser.send("POST", PATH, {"token": link(browser.rig, began=-5)})

    assert (answer.status, "older than this gateway" in answer.body["detail"]) == (401, True)


@each_case("which", list(tampered("1.2.n.m.eA")))
async def test_a_forged_link_is_refused(which: str, rig: GatewayRig):
    rig.add_key("AKIDother", "secret")

    with pytest.raises(NotAuthenticated):
        await rig.console.sessions.find_by_link(tampered(link(rig))[which], None)


async def test_a_session_is_no_link(signed_in: Browser):
    assert (await signed_in.send("POST", PATH, {"token": signed_in.cookie})).status == 401


async def test_a_link_of_a_disabled_key_is_refused(browser: Browser):
    disabled = browser.rig.add_key("AKIDoff", "secret", enabled=False)

    assert (await browser.send("POST", PATH, {"token": link(browser.rig, key=disabled)})).status == 401


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 2_000])
async def test_a_sign_in_with_a_number_that_no_double_holds_is_a_problem(
    number: bytes, browser: Browser, caplog: pytest.LogCaptureFixture
):
    answer = await browser.send("POST", PATH, b'{"secret_id":%s,"secret_key":"x"}' % number)

    assert (answer.status, answer.body["field"]) == (400, "secret_id")
    assert "request_failed" not in caplog.text


# ---------------------------------------------------------------- texts, nonces, logs


@pytest.mark.parametrize("secret_id", ["AKID", "a.b:c", "\x20", "x" * 128])
def test_a_text_is_read_as_it_was_made(secret_id: str):
    made = sign(Purpose.SESSION, secret_id, "secret", 1, 2)
    known = read(str(made))

    assert known == made
    assert made.is_signed(Purpose.SESSION, "secret")
    assert not made.is_signed(Purpose.SESSION, "other")
    assert not made.is_signed(Purpose.SIGN_IN, "secret")


def test_fields_cannot_be_shifted_between_each_other():
    made = sign(Purpose.SESSION, "b", "secret", 1, 23, nonce="a")
    shifted = SignedText("b", 12, 3, "a", made.mac)

    assert not shifted.is_signed(Purpose.SESSION, "secret")


def test_a_nonce_is_taken_once_and_forgotten_after_its_end():
    now = 100.0
    nonces = Nonces(lambda: now)
    key = KeySecret("AKID1", "x", account="shop")
    assert nonces.add(key, "a", 200, replaces=False)
    assert not nonces.add(key, "a", 300, replaces=False)
    assert nonces.add(KeySecret("AKID2", "x", account="shop"), "a", 150, replaces=False), "another key's text"
    for index in range(MAX_NONCES_OF_ACCOUNT - 2):
        assert nonces.add(key, f"{index}", 150, replaces=False)
    assert not nonces.add(key, "b", 200, replaces=False), "without room, a link is refused, for it could be used twice"
    assert nonces.add(KeySecret("AKID3", "x", account="other"), "b", 150, replaces=False)
    now = 151.0
    assert nonces.add(key, "b", 200, replaces=False)
    assert nonces.has(key, "a")
    assert len(nonces) == 3


def test_a_full_share_drops_the_nonces_of_its_signer():
    nonces = Nonces(lambda: 0.0)
    honest, colleague = KeySecret("AKID1", "x", account="shop"), KeySecret("AKID2", "x", account="shop")
    flooder, other = KeySecret("AKID3", "x", account="shop"), KeySecret("AKID4", "x", account="other")
    for key in (honest, other):
        assert nonces.add(key, "n", 1e9, replaces=True)
    for index in range(MAX_NONCES_OF_ACCOUNT * 3):
        assert nonces.add(flooder, f"{index}", 1e9, replaces=True)

    assert nonces.has(honest, "n")
    assert nonces.has(other, "n")
    assert not nonces.has(flooder, "0")
    assert len(nonces) == MAX_NONCES_OF_ACCOUNT + 1
    # The share is full with nonces of another signer, which has the most.
    assert nonces.add(colleague, "n", 1e9, replaces=True)
    assert nonces.has(honest, "n")
    assert len(nonces) == MAX_NONCES_OF_ACCOUNT + 1


def test_all_accounts_together_have_a_bound_that_the_largest_account_pays():
    nonces = Nonces(lambda: 0.0)
    small = KeySecret("AKID0", "x", account="small")
    assert nonces.add(small, "n", 1e9, replaces=True)
    for account in range(1, MAX_NONCES // MAX_NONCES_OF_ACCOUNT + 3):
        key = KeySecret(f"AKID{account}", "x", account=f"a{account}")
        for index in range(MAX_NONCES_OF_ACCOUNT):
            nonces.add(key, f"{index}", 1e9, replaces=True)

    assert len(nonces) == MAX_NONCES
    assert nonces.has(small, "n")


@pytest.mark.parametrize(
    ("ahead", "seconds", "is_valid"),
    [
        (FUTURE_SECONDS - 5, 600, True),
        (FUTURE_SECONDS + 5, 600, False),
        (1_000_000_000_000 - 1_800_000_000, 600, False),
        (0, SESSION_SECONDS, True),
        (0, SESSION_SECONDS + 1, False),
    ],
)
async def test_a_session_of_the_far_future_or_of_a_long_life_is_none(
    ahead: int, seconds: int, is_valid: bool, rig: GatewayRig
):
    now = int(rig.gateway.wall_clock())
    text = sign(Purpose.SESSION, rig.own_key.secret_id, rig.own_key.secret_key, now + ahead, now + ahead + seconds)

    if is_valid:
        session = await rig.console.sessions.find(str(text), None)
        assert session.key == rig.own_key
    else:
        with pytest.raises(SessionEnded):
            await rig.console.sessions.find(str(text), None)


async def test_no_log_no_repr_and_no_error_has_a_secret(rig: GatewayRig, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    browser, token = Browser(rig), link(rig)
    answers = [
        await browser.sign_in(),
        await browser.send("POST", PATH, {"token": token}),
        await browser.send("POST", PATH, {"token": token}),
        await browser.send("POST", PATH, {"secret_id": "x", "secret_key": rig.own_key.secret_key + "x"}),
        await browser.send("POST", PATH, {"secret_id": "x", "secret_key": [rig.own_key.secret_key]}),
        await browser.send("PUT", f"{BASE}/queues/new", headers={"X-CSRF-Token": ""}),
    ]
    session = rig.console.sessions.begin(rig.own_key)
    shown = caplog.text + repr(session) + json.dumps([answer.body for answer in answers])

    for secret in (rig.own_key.secret_key, browser.cookie, token, session.text.mac):
        assert secret not in shown
    assert [answer.status for answer in answers] == [200, 200, 401, 401, 400, 403]


def stream_of(browser: Browser) -> EventStream:
    return EventStream(browser.rig, cookie="; ".join(f"{name}={value}" for name, value in browser.cookies.items()))


async def test_the_sign_out_ends_the_event_streams_of_the_session_alone(signed_in: Browser):
    async with stream_of(signed_in) as events, EventStream(signed_in.rig) as another:
        await events.next("hello")
        await signed_in.send("DELETE", PATH)

        assert await events.next("bye") == {"reason": "session_ended"}
        await another.next("figures")
        assert len(signed_in.rig.console.streams) == 1


async def test_an_event_stream_ends_with_its_cookie_and_the_history_renews_the_cookie(
    signed_in: Browser, monkeypatch: pytest.MonkeyPatch
):
    rig = signed_in.rig
    async with stream_of(signed_in) as events:
        await events.next("hello")
        rig.wall_offset += IDLE_SECONDS - 60
        before = dict(signed_in.cookies)
        assert (await signed_in.send("GET", "/console/history")).status == 200
        assert signed_in.cookies != before
        rig.wall_offset += 120
        rig.key_changed(None)

        assert await events.next("bye") == {"reason": "session_ended"}
    async with stream_of(signed_in) as events:
        await events.next("hello")


async def test_the_event_stream_and_the_history_take_the_session(signed_in: Browser):
    assert (await signed_in.send("GET", "/console/history")).status == 200
    url, (name,) = f"http://{signed_in.rig.host}/console/events", signed_in.cookies
    headers = {"Cookie": f"{name}={signed_in.cookie}", "Sec-Fetch-Site": "same-origin"}
    async with signed_in.rig.session.get(url, headers=headers) as stream:
        assert (stream.status, stream.content_type) == (200, "text/event-stream")
    refused = await Browser(signed_in.rig).send("GET", "/console/history")
    assert (refused.status, refused.name) == (401, "unauthorized")


async def test_the_history_is_compressed(signed_in: Browser):
    (name,) = signed_in.cookies
    headers = {"Cookie": f"{name}={signed_in.cookie}", "Accept-Encoding": "gzip"}
    url = f"http://{signed_in.rig.host}/console/history?range=1h"
    async with signed_in.rig.session.get(url, headers=headers) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert (await response.json())["step"] > 0
    async with signed_in.rig.session.get(url, headers=headers | {"Accept-Encoding": "identity"}) as response:
        assert "Content-Encoding" not in response.headers
