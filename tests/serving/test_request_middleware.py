"""Requests that their headers rule out are rejected before the body is read; the number of connections is bounded."""

import asyncio
import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from heed.errors import ConfigError
from heed.serving.config import ServeConfig
from heed.serving.http_errors import HttpError
from heed.serving.limits import ApiKeys, add_key
from heed.serving.request_middleware import RequestMiddleware
from heed.serving.server import connection_limit
from tests.serving.conftest import MANY
from tests.serving.running import Running, serving

JSON = (b"content-type", b"application/json")


class RecordingApp:
    """An application that records the fields it receives."""

    def __init__(self) -> None:
        self.fields: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.fields.append(scope["state"]["fields"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class FakeRequest:
    """A request to the middleware; records status, error and how much of the body was read before the response."""

    def __init__(
        self, body: bytes = b"", *headers: tuple[bytes, bytes], path: str = "/translate", query: bytes = b""
    ) -> None:
        length = (b"content-length", str(len(body)).encode())
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": query,
            "headers": [JSON, length, *headers],
            "client": ("192.0.2.1", 1),
        }
        self._parts = [body[start : start + 1000] for start in range(0, len(body), 1000)]
        self.status, self.error, self.read = 0, "", 0

    async def receive(self) -> Message:
        if not self._parts:
            return {"type": "http.disconnect"}
        part = self._parts.pop(0)
        if not self.status:
            self.read += len(part)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        if message.get("body"):
            self.error = json.loads(message["body"])["error"]

    def sent_through(self, middleware: RequestMiddleware) -> "FakeRequest":
        asyncio.run(middleware(self.scope, self.receive, self.send))
        return self


def not_busy() -> None:
    return None


@pytest.fixture
def key(tmp_path: Path) -> str:
    return add_key(tmp_path / "keys.txt")


@pytest.fixture
def keys(key: str, tmp_path: Path) -> ApiKeys:
    assert key
    return ApiKeys(tmp_path / "keys.txt")


LONG_BODY = json.dumps({"q": "x" * 50_000}).encode()


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


def test_a_wrong_key_in_header_or_query_is_rejected_before_the_body_is_read(keys: ApiKeys) -> None:
    middleware = RequestMiddleware(RecordingApp(), ServeConfig(), keys, not_busy)
    for request in (FakeRequest(LONG_BODY, bearer("wrong")), FakeRequest(LONG_BODY, query=b"api_key=wrong")):
        assert (request.sent_through(middleware).status, request.error, request.read) == (403, "Invalid API key", 0)


def test_requests_over_the_rate_limit_are_rejected_before_the_body_is_read(keys: ApiKeys) -> None:
    config = ServeConfig(burst=1, requests_per_minute=1)
    for known_keys in (None, keys):
        middleware = RequestMiddleware(RecordingApp(), config, known_keys, not_busy)
        FakeRequest(LONG_BODY).sent_through(middleware)
        refused = FakeRequest(LONG_BODY).sent_through(middleware)
        assert (refused.status, refused.read) == (429, 0)


def test_a_busy_server_rejects_requests_before_the_body_is_read() -> None:
    busy = RequestMiddleware(RecordingApp(), ServeConfig(), None, lambda: HttpError(503, "busy"))
    assert (FakeRequest(LONG_BODY).sent_through(busy).status, FakeRequest(LONG_BODY).sent_through(busy).read) == (
        503,
        0,
    )
    assert FakeRequest(LONG_BODY, path="/detect").sent_through(busy).status == 200


def test_a_content_length_over_the_limit_is_rejected_before_the_body_is_read() -> None:
    middleware = RequestMiddleware(RecordingApp(), ServeConfig(body_bytes=1000), None, not_busy)
    request = FakeRequest(LONG_BODY).sent_through(middleware)
    assert (request.status, request.read) == (413, 0)


def test_a_chunked_body_is_read_no_further_than_the_limit() -> None:
    middleware = RequestMiddleware(RecordingApp(), ServeConfig(body_bytes=5000), None, not_busy)
    request = FakeRequest(LONG_BODY, (b"transfer-encoding", b"chunked")).sent_through(middleware)
    assert (request.status, request.read) == (413, 6000)


def test_a_key_in_the_body_is_accepted_and_a_long_body_counts_against_its_address_first(
    keys: ApiKeys, key: str
) -> None:
    recording_app = RecordingApp()
    middleware = RequestMiddleware(recording_app, ServeConfig(burst=2, requests_per_minute=1), keys, not_busy)
    short, long = ({"q": "x" * size, "api_key": key} for size in (10, 20_000))
    assert [FakeRequest(json.dumps(fields).encode()).sent_through(middleware).status for fields in (short, long)] == [
        200,
        200,
    ]
    assert recording_app.fields == [short, long]
    assert FakeRequest(LONG_BODY).sent_through(middleware).status == 400  # the address had one request left
    assert FakeRequest(LONG_BODY).sent_through(middleware).status == 429
    # The key has used up its two requests.
    assert FakeRequest(json.dumps(short).encode()).sent_through(middleware).status == 429
    other = FakeRequest(b"{}").sent_through(middleware)
    assert (other.status, other.read) == (429, 2)


def test_long_bodies_share_bounded_memory_and_short_ones_are_always_accepted() -> None:
    middleware = RequestMiddleware(RecordingApp(), ServeConfig(bodies_bytes=76_384), None, not_busy)

    async def send_all() -> tuple[int, str, int]:
        held = asyncio.Event()

        class Held(FakeRequest):
            async def receive(self) -> Message:
                await held.wait()
                return await super().receive()

        first = Held(LONG_BODY)
        reading = asyncio.ensure_future(middleware(first.scope, first.receive, first.send))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second, short = FakeRequest(LONG_BODY), FakeRequest(b"{}")
        await middleware(second.scope, second.receive, second.send)
        await middleware(short.scope, short.receive, short.send)
        held.set()
        await reading
        after = FakeRequest(LONG_BODY)
        await middleware(after.scope, after.receive, after.send)
        assert (first.status, short.status, after.status) == (200, 200, 200)
        return second.status, second.error, second.read

    assert asyncio.run(send_all()) == (503, "Too busy: too many long requests are being received", 0)


@pytest.fixture(scope="module")
def ten_connections(folders: tuple[Path, Path]) -> Iterator[Running]:
    """A server that accepts ten connections."""
    with serving(folders[0], *MANY, "--set", "serve.connections=10") as running:
        yield running


def test_idle_connections_block_nobody_and_the_longest_idle_is_closed_first(ten_connections: Running) -> None:
    head = (
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    with ExitStack() as clients:
        idle = [
            clients.enter_context(socket.create_connection(ten_connections.socket_address, timeout=60))
            for _ in range(40)
        ]
        for number, client in enumerate(idle[-5:]):
            client.sendall([b"", b"POST /tr", head][number % 3])
        for _ in range(5):
            assert ten_connections.post("/translate", q="A dog", source="en", target="de").status_code == 200
        with pytest.raises((ConnectionError, AssertionError)):
            assert idle[0].recv(1)
        idle[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            idle[-1].recv(1)


def test_an_unread_body_is_discarded_only_up_to_a_limit(ten_connections: Running) -> None:
    with socket.create_connection(ten_connections.socket_address, timeout=60) as client:
        client.sendall(b"POST /languages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
        with pytest.raises(ConnectionError):
            client.sendall(b"x" * 100_000_000)


def test_connections_are_bounded_by_the_limit_on_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changed.append(limits))
    for limits, most in (((64, 64), 32), ((1024, 4096), 2048), ((1024, 1500), 1468), ((10_000, 10_000), 2048)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert connection_limit(2048) == most
    assert changed == [(64, 64), (2080, 4096), (1500, 1500)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    with pytest.raises(ConfigError, match="the limit on open files is 40: raise it to at least 64 with ulimit -n"):
        connection_limit(2048)
