"""Requests refused before HTTP is parsed get the response that the application would send, and no other is refused."""

import asyncio
from typing import Any

import h11
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from heed.serving.config import ServeConfig
from heed.serving.limits import Admission
from heed.serving.metrics import RequestMetrics
from heed.serving.quick_refusals import QuickRefusals
from heed.serving.security_middleware import HeadCheck, with_middleware
from heed.serving.server import _protocol

BODY = b'{"q": "A dog", "source": "en", "target": "de"}'
PLAIN = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(BODY))}
DATE = (b"date", b"Thu, 19 Nov 2026 12:00:00 GMT")


def request(headers: dict[str, str], line: str = "POST /translate HTTP/1.1", body: bytes = BODY) -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{line}\r\n{head}\r\n".encode() + body


def busy(**settings: Any) -> tuple[QuickRefusals, Admission, RequestMetrics]:
    """Quick refusals of a server with one place, which is taken."""
    admission, metrics = Admission(1, 60.0), RequestMetrics()
    admission.active = 1
    return QuickRefusals(admission, HeadCheck.of(ServeConfig(**settings)), metrics), admission, metrics


class Written(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.bytes += bytes(data)

    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        raise AssertionError("the connection is closed")


async def responses(received: list[bytes], config: ServeConfig, *, quick: bool) -> list[bytes]:
    """What a connection to a busy server answers to each piece; the last arrives when a place is free."""
    admission, metrics = Admission(1, 60.0), RequestMetrics()

    async def application(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    refusals = QuickRefusals(admission, HeadCheck.of(config), metrics)
    if not quick:
        refusals.response = lambda *_: None  # type: ignore[method-assign]
    app = with_middleware(application, config, None, admission.rejection, metrics)
    protocol_type = _protocol(10.0, 10, refusals)
    settings = uvicorn.Config(app, http=protocol_type, lifespan="off", log_config=None, ws="none", proxy_headers=False)
    settings.load()
    state = ServerState()
    state.default_headers = [DATE]
    protocol = protocol_type(settings, state, {}, asyncio.get_running_loop())
    transport = Written()
    protocol.connection_made(transport)
    answers = []
    for index, data in enumerate(received):
        admission.active = int(index < len(received) - 1)
        transport.bytes = b""
        protocol.data_received(data)
        for _ in range(20):
            await asyncio.sleep(0)
        answers.append(transport.bytes)
    assert metrics.lines().count('status="503"') == min(len(received) - 1, 1)
    return answers


def parsed(response: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(response)
    head, body = connection.next_event(), b""
    assert isinstance(head, h11.Response)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    return head.status_code, dict(head.headers), body


@pytest.mark.parametrize("origin", [None, "https://example.org"])
def test_a_refusal_is_the_response_of_the_application_and_the_connection_goes_on(origin: str | None) -> None:
    config = ServeConfig(allowed_origins=("https://example.org",))
    headers = PLAIN if origin is None else PLAIN | {"Origin": origin}
    received = [request(headers), request(headers), request(headers)]
    quick, usual = (asyncio.run(responses(received, config, quick=way)) for way in (True, False))
    assert [parsed(response) for response in quick] == [parsed(response) for response in usual]
    assert [parsed(response)[0] for response in quick] == [503, 503, 200]
    assert parsed(quick[0])[1][b"retry-after"] == b"1"


def test_a_refusal_is_counted() -> None:
    refusals, _, metrics = busy()
    assert refusals.response(request(PLAIN), [DATE]) is not None
    assert 'heed_requests_total{route="/translate",status="503"} 1' in metrics.lines()


@pytest.mark.parametrize(
    "received",
    [
        request(PLAIN)[:-1],  # not all of it has arrived
        request(PLAIN) + b"P",  # another request follows
        request(PLAIN, "GET /translate HTTP/1.1"),
        request(PLAIN, "POST /translate HTTP/1.0"),
        request(PLAIN, "POST /translate?q=a HTTP/1.1"),
        request(PLAIN, "POST /languages HTTP/1.1"),
        request(PLAIN | {"Connection": "close"}),
        request(PLAIN | {"Expect": "100-continue"}),
        request(PLAIN | {"Transfer-Encoding": "chunked"}),
        request(PLAIN | {"content-length": "3"}),
        request(PLAIN | {"Content-Length": "+46"}),
        request(PLAIN | {"Host ": "localhost"}),
        request(PLAIN | {"X": "a\n b"}),
        request({"Content-Length": str(len(BODY))}),
        request({"Host": "localhost"}),
        request(PLAIN | {"Host": "example.org"}),  # 421
        request(PLAIN | {"Origin": "https://example.org"}),  # 403
        request(PLAIN | {"Cookie": "a" * 20_000}),
        b"",
    ],
)
def test_everything_else_is_left_to_the_application(received: bytes) -> None:
    refusals, _, metrics = busy()
    assert refusals.response(received, [DATE]) is None
    assert "503" not in metrics.lines()


def test_a_server_with_a_free_place_or_one_that_shuts_down_refuses_nothing_quickly() -> None:
    refusals, admission, _ = busy()
    admission.active = 0
    assert refusals.response(request(PLAIN), []) is None
    admission.active, admission.shutting_down = 1, True
    assert refusals.response(request(PLAIN), []) is None


_LENGTHS = ("Content-Length: 4", "Content-Length: 0", "content-length: 4 ")
_OTHERS = ("Host:", "X-A: b", "X: ä", "X :y", " X: y", ":", "", "X: \x00", "é: x", "Connection: close")
_LINES = st.sampled_from([*_LENGTHS, *_OTHERS, "Transfer-Encoding: chunked"])


def test_what_is_refused_is_one_whole_request_to_an_http_parser() -> None:
    refused: list[bytes] = []

    @given(st.lists(_LINES, max_size=2), st.sampled_from(["\r\n", "\n"]), st.binary(max_size=8), st.integers(0, 9))
    def check(others: list[str], end: str, body: bytes, declared: int) -> None:
        length = declared if declared > 8 else len(body)  # in one case of ten wrong
        lines = ["POST /translate HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *others, "", ""]
        received = end.join(lines).encode("latin-1") + body
        if busy()[0].response(received, []) is None:
            return
        refused.append(received)
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(received)
        head = connection.next_event()
        assert isinstance(head, h11.Request)
        assert (head.method, head.target, head.http_version) == (b"POST", b"/translate", b"1.1")
        arrived = b""
        while isinstance(event := connection.next_event(), h11.Data):
            arrived += event.data
        assert (type(event), arrived, connection.trailing_data[0]) == (h11.EndOfMessage, body, b"")

    check()
    assert len(refused) > 5
