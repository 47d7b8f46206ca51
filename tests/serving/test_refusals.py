"""Invalid requests get JSON errors, with LibreTranslate's messages where it has one."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heed.serving.config import ServeConfig
from heed.serving.limits import add_key
from heed.serving.request_middleware import route_name
from tests.serving.running import CLIENT, Running, serving, wait_until

GOOD = {"q": "A dog", "source": "en", "target": "de"}


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"q": None}, "Invalid request: missing q parameter"),
        ({"q": ""}, "Invalid request: missing q parameter"),
        ({"q": []}, "Invalid request: missing q parameter"),
        ({"source": ""}, "Invalid request: missing source parameter"),
        ({"target": None}, "Invalid request: missing target parameter"),
        ({"q": 123}, "Invalid request: q parameter: input should be a valid string"),
        ({"q": {}}, "Invalid request: q parameter: input should be a valid string"),
        ({"q": ["a", 1]}, "Invalid request: q parameter: input should be a valid string"),
        ({"q": True}, "Invalid request: q parameter: input should be a valid string"),
        ({"source": ["en"]}, "Invalid request: source parameter: input should be a valid string"),
        ({"source": "zz"}, "zz is not supported"),
        ({"target": "zz"}, "zz is not supported"),
        ({"target": "auto"}, "auto is not supported"),
        ({"target": "de-Cyrl-x", "source": "zz-Latn"}, "zz-Latn is not supported"),
        ({"source": "auto", "target": "auto"}, "auto is not supported"),
        ({"format": "xml"}, "xml format is not supported"),
        ({"format": 1}, "Invalid request: format parameter: input should be 'text' or 'html'"),
        ({"alternatives": "abc"}, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": -1}, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": 1.5}, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": True}, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": "²"}, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": 6}, "Invalid request: alternatives parameter must be <= 5"),
        ({"q": "x" * 6000}, "Invalid request: request (6000) exceeds text limit (5000)"),
        ({"q": ["x" * 3000] * 2}, "Invalid request: request (6000) exceeds text limit (5000)"),
        ({"q": ["x"] * 65}, "Invalid request: request (65) exceeds text limit (64)"),
    ],
)
def test_invalid_values_get_400_with_the_reason(server: Running, changed: dict[str, object], error: str) -> None:
    answer = server.post("/translate", **(GOOD | changed))
    assert (answer.status_code, answer.json()) == (400, {"error": error})


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1]",
        b'"q"',
        b"\xff\xfe",
        b'{"q": "a", "q": "b"}',
        b'{"q": NaN}',
        b'{"q": 1e999}',
        b'{"q": Infinity}',
        b'{"q": "\\ud800"}',
        b'{"q": ["\\udfff"]}',
        b'{"q": ' + b"9" * 5000 + b"}",
        b'{"q": [}' + b'"' * 40_000,
        '{"q": "ä"}'.encode("utf-16"),
    ],
)
def test_nonstandard_json_is_rejected(server: Running, body: bytes) -> None:
    answer = CLIENT.post(f"{server.address}/translate", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid JSON format"})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"q": ' + b"[" * 16 + b"]" * 16 + b"}", "Invalid request: JSON nested deeper than 16 levels"),
        (b'{"q": ' + b"[" * 9000 + b"]" * 9000 + b"}", "Invalid request: JSON nested deeper than 16 levels"),
        (b"[" + b"[]," * 20_000 + b"[]]", "Invalid request: JSON with 40002 items; the limit is 10000"),
        (b'{"q": ["", ' + b'"{[,]}", ' * 6000 + b'""]}', "Invalid request: request (6002) exceeds text limit (64)"),
    ],
)
def test_json_of_many_items_or_levels_is_refused(server: Running, body: bytes, error: str) -> None:
    answer = CLIENT.post(
        f"{server.address}/translate",
        params={"source": "en", "target": "de"},
        content=body,
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()) == (400, {"error": error})


@pytest.mark.parametrize(
    ("request_of", "status", "error"),
    [
        ({"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "Content type text/plain is not supported"),
        ({"content": b"x"}, 415, "Content type none is not supported"),
        (
            {"content": b"{}", "headers": {"Content-Type": "application/json; charset=latin-1"}},
            415,
            "Character set latin-1 is not supported",
        ),
        (
            {"content": b"q=%ff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
            400,
            "Invalid request: the form is not form data in UTF-8",
        ),
        (
            {"content": b"q=a&q=b", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
            400,
            "Invalid request: the form repeats a name",
        ),
        ({"params": [("q", "a"), ("q", "b")]}, 400, "Invalid request: the query string repeats a name"),
        ({"files": {"q": b"a file"}}, 400, "Invalid request: the form is not form data in UTF-8, or contains files"),
        ({"content": b"x" * 100_000}, 413, "Invalid request: the body exceeds 76384 bytes"),
        ({"content": b"x" * 9_000_000}, 413, "Invalid request: the body exceeds 76384 bytes"),
        ({"headers": {"X-Long": "x" * 20_000}}, 431, "Invalid request: request line and headers exceed 16384 bytes"),
        ({"headers": {"Host": "evil.example"}}, 421, "Unknown host name 'evil.example'"),
    ],
)
def test_invalid_bodies_and_headers_get_4xx_with_the_reason(
    server: Running, request_of: dict[str, Any], status: int, error: str
) -> None:
    answer = CLIENT.post(f"{server.address}/translate", **request_of)
    assert answer.json()["error"].startswith(error)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("method", "route", "status", "error"),
    [
        ("GET", "/nothing", 404, "Not found"),
        ("GET", "/translate", 405, "Method not allowed"),
        ("POST", "/suggest", 403, "Suggestions are disabled on this server."),
        ("POST", "/translate_file", 403, "Files translation are disabled on this server."),
        ("OPTIONS", "/translate", 405, "Method not allowed"),  # CORS is off
        ("GET", "/docs/../../etc/passwd", 404, "Not found"),
    ],
)
def test_unknown_and_disabled_routes_get_json_errors(
    server: Running, method: str, route: str, status: int, error: str
) -> None:
    answer = CLIENT.request(method, server.address + route)
    assert (answer.status_code, answer.json()) == (status, {"error": error})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("method", "route", "allowed"),
    [
        ("GET", "/translate", "POST"),
        ("HEAD", "/translate", "POST"),
        ("OPTIONS", "/translate", "POST"),
        ("DELETE", "/languages", "GET, HEAD, POST"),
        ("PUT", "/health", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
        ("POST", "/page/main.js", "GET, HEAD"),
    ],
)
def test_a_wrong_method_gets_405_with_the_allowed_ones(server: Running, method: str, route: str, allowed: str) -> None:
    answer = CLIENT.request(method, server.address + route)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("route", "to"),
    [
        ("/translate/", "../translate"),
        ("/translate/stream/", "../stream"),
        ("/docs/", "../docs"),
        ("/page/a%0d%0aX-Y:%20z/", "../a%0D%0AX-Y%3A%20z"),
        ("/page/evil.example/", "../evil.example"),
    ],
)
def test_a_trailing_slash_redirects_to_a_relative_address(server: Running, route: str, to: str) -> None:
    answer = CLIENT.post(server.address + route, headers={"Host": "localhost:1"})
    assert (answer.status_code, answer.headers["location"], "x-y" in answer.headers) == (307, to, False)
    assert CLIENT.get(f"{server.address}/nothing/").status_code == 404
    assert CLIENT.get(f"{server.address}//evil.example/").status_code == 404


def test_a_chunked_body_over_the_limit_gets_413(server: Running) -> None:
    answer = CLIENT.post(f"{server.address}/translate", content=iter([b"x" * 100_000] * 11))  # chunked
    assert (answer.status_code, answer.json()["error"]) == (413, "Invalid request: the body exceeds 76384 bytes")


def test_disabled_routes_answer_403_whatever_is_sent(server: Running) -> None:
    for content in (b"a document", b"x" * 3_000_000):
        answer = CLIENT.post(f"{server.address}/translate_file", files={"file": content}, data={"source": "en"})
        expected = {"error": "Files translation are disabled on this server."}
        assert (answer.status_code, answer.json()) == (403, expected)


def test_head_requests_get_headers_without_a_body(server: Running) -> None:
    for route, status in (("/health", 200), ("/languages", 200), ("/nothing", 404), ("/translate", 405)):
        answer = CLIENT.head(server.address + route)
        assert (answer.status_code, answer.content) == (status, b"")
        assert int(answer.headers["content-length"]) > 0


@pytest.fixture(scope="module")
def narrow(folders: tuple[Path, Path]) -> Iterator[Running]:
    """A server with low limits."""
    limits = {
        "body_bytes": 200,
        "header_bytes": 1000,
        "characters": 20,
        "texts": 1,
        "alternatives": 1,
        "look_tokens": 9,
    }
    with serving(
        folders[0], *(part for name, size in limits.items() for part in ("--set", f"serve.{name}={size}"))
    ) as server:
        yield server


@pytest.mark.parametrize(
    ("route", "changed", "status", "error"),
    [
        ("/translate", {"x": "x" * 200}, 413, "Invalid request: the body exceeds 200 bytes"),
        ("/translate", {"q": "x" * 21}, 400, "Invalid request: request (21) exceeds text limit (20)"),
        ("/translate", {"q": ["x"] * 2}, 400, "Invalid request: request (2) exceeds text limit (1)"),
        ("/translate", {"alternatives": 2}, 400, "Invalid request: alternatives parameter must be <= 1"),
        ("/translate/stream", {"q": "x" * 21}, 400, "Invalid request: request (21) exceeds text limit (20)"),
        ("/detect", {"q": "x" * 21}, 400, "Invalid request: request (21) exceeds text limit (20)"),
        ("/alternatives", {"prefix": "x" * 16}, 400, "Invalid request: request (21) exceeds text limit (20)"),
        ("/alternatives", {"alternatives": 2}, 400, "Invalid request: alternatives parameter must be <= 1"),
        ("/look", {"q": "0123456789"}, 400, "Invalid request: 10 tokens exceed the limit of 9 for a trace"),
        ("/look", {"translation": "0123456789"}, 400, "Invalid request: 10 tokens exceed the limit of 9"),
    ],
)
def test_each_limit_can_be_set_and_holds(
    narrow: Running, route: str, changed: dict[str, object], status: int, error: str
) -> None:
    answer = narrow.post(route, **({"q": "A dog", "source": "en", "target": "de"} | changed))
    assert answer.json()["error"].startswith(error)
    assert answer.status_code == status


def test_requests_within_the_limits_succeed(narrow: Running) -> None:
    for route in ("/translate", "/translate/stream", "/detect", "/alternatives", "/look"):
        assert narrow.post(route, q="A dog", source="en", target="de").status_code == 200, route


def test_the_limit_of_the_headers_can_be_set(narrow: Running) -> None:
    answer = CLIENT.get(f"{narrow.address}/health", params={"x": "x" * 1000})
    assert (answer.status_code, answer.json()["error"]) == (
        431,
        "Invalid request: request line and headers exceed 1000 bytes",
    )


def test_every_limit_is_on_by_default() -> None:
    config = ServeConfig()
    assert (config.max_body_bytes, config.header_bytes, config.characters, config.texts) == (76_384, 16 << 10, 5000, 64)
    assert (config.connections, config.bodies_bytes) == (2048, 16 << 20)
    assert (config.alternatives, config.queue, config.deadline, config.host) == (5, 128, 30, "127.0.0.1")


def test_malformed_http_gets_a_json_error(server: Running) -> None:
    for nonsense in (b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"POST / HTTP/1.1\r\nX: " + b"x" * 40_000):
        with socket.create_connection(server.socket_address, timeout=60) as client:
            client.sendall(nonsense)
            head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body) == {"error": "Invalid request: Invalid HTTP request received."}
    with socket.create_connection(server.socket_address, timeout=60) as client:
        client.sendall(b"nonsense\r\n\r\n")

        def is_closed() -> bool:
            try:
                client.sendall(b"more of it")
            except ConnectionError:
                return True
            return False

        wait_until(is_closed, "a client that does not hang up is hung up on")


def test_every_response_has_security_headers(server: Running) -> None:
    for route in ("/docs", "/languages", "/nothing", "/translate"):
        headers = server.get(route).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


@pytest.fixture(scope="module")
def strict(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """A server that needs keys and has short timeouts."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    key = add_key(keys)
    with serving(folders[0], "--keys", keys, "--set", "serve.read_timeout=0.5") as running:
        yield running, key


def test_every_route_needs_a_key_unless_it_is_public(strict: tuple[Running, str]) -> None:
    server, key = strict
    public = {"/spec", "/health", "/health/ready", "/languages", "/frontend/settings"}
    for route, methods in server.get("/spec").json()["paths"].items():
        for method in methods:
            answer = CLIENT.request(method, server.address + route)
            if route in public:
                assert answer.status_code == 200, route
            elif route in ("/suggest", "/translate_file"):  # nothing to protect
                assert answer.status_code == 403, route
            else:
                expected = {"error": "Please contact the server operator to get an API key"}
                assert (answer.status_code, answer.json()) == (400, expected), route
    wrong_key = server.post("/translate", **GOOD, api_key=key[:-1])
    assert (wrong_key.status_code, wrong_key.json()) == (403, {"error": "Invalid API key"})
    assert server.post("/translate", **GOOD, api_key=key).status_code == 200
    assert CLIENT.post(f"{server.address}/translate", params={**GOOD, "api_key": key}).status_code == 200
    assert CLIENT.get(f"{server.address}/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    settings = server.get("/frontend/settings").json()
    assert (settings["apiKeys"], settings["keyRequired"]) == (True, True)


def test_too_many_requests_are_refused_by_key_and_by_address(folders: tuple[Path, Path], tmp_path: Path) -> None:
    first_key, second_key = (add_key(tmp_path / "keys.txt") for _ in range(2))
    limits = ("--keys", tmp_path / "keys.txt", "--set", "serve.burst=3", "--set", "serve.requests_per_minute=1")
    with serving(folders[0], *limits) as server:
        for key, status in ((first_key, 200), (second_key, 200), ("wrong", 403)):
            answers = [server.post("/detect", q="A dog", api_key=key) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [status, status, status, 429]
            assert answers[-1].json()["error"].startswith("Slowdown: more than 1 requests per minute; try again in ")
            assert int(answers[-1].headers["retry-after"]) > 0
        assert server.post("/detect", q="A dog").status_code == 429  # the limit of the address, used up by wrong keys
        assert server.get("/health").status_code == 200


def test_every_route_is_counted_by_its_name(server: Running) -> None:
    for route in server.get("/spec").json()["paths"]:
        assert route_name(route) == route
    assert [route_name(path) for path in ("/page/x.js", "/translate/", "/SECRET")] == ["/page/{name}", "other", "other"]


def test_metrics_hold_no_text_no_key_and_no_address(strict: tuple[Running, str]) -> None:
    server, key = strict
    for path in ("/translate", "/SECRET", "/translate?q=SECRET", "/page/SECRET"):
        server.post(path, q="SECRET", source="SECRET", api_key="SECRET")
    metrics = CLIENT.get(f"{server.address}/metrics", headers={"Authorization": f"Bearer {key}"}).text
    assert 'heed_requests_total{route="/translate"' in metrics
    for secret in ("SECRET", key, "127.0.0.1"):
        assert secret not in metrics
        assert secret not in server.stderr_text().partition("\n")[2]  # after the line with the address


def test_clients_that_do_not_read_responses_are_disconnected(strict: tuple[Running, str]) -> None:
    server, _ = strict
    with socket.create_connection(server.socket_address, timeout=60) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Their responses have about 30 MB, more than socket buffers hold.
        requests = b"GET /spec HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000

        def ask() -> bool:
            client.sendall(requests)
            return False

        with pytest.raises(ConnectionError):
            wait_until(ask, "an end")


def test_clients_that_do_not_finish_a_request_are_disconnected(strict: tuple[Running, str]) -> None:
    server, _ = strict
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    for beginning, answer in ((b"", b""), (b"POST /tran", b""), (head + b"{", b"HTTP/1.1 408 ")):
        with socket.create_connection(server.socket_address, timeout=60) as client:
            client.sendall(beginning)
            assert client.makefile("rb").read().startswith(answer)
