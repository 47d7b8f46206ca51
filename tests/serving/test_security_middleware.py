"""Who may reach a server: its host names, clients behind proxies, keys that change, web pages of other origins."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from heed.errors import ConfigError
from heed.serving.config import ServeConfig
from heed.serving.limits import add_key
from heed.serving.security_middleware import CorsPolicy, allowed_host_names, behind_proxies, check_addresses
from tests.serving.running import CLIENT, Running, refused, serving

GOOD = {"q": "A dog", "source": "en", "target": "de"}
ALLOWED = "https://good.example"


def is_refused(origins: CorsPolicy, method: str = "POST", **headers: str) -> bool:
    header_list = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    problem = origins.rejection({"type": "http", "method": method, "headers": header_list})
    assert problem is None or problem.status == 403
    return problem is not None


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),  # not a browser
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "http://LOCALHOST:8080"}, False),
        ({"origin": "http://localhost:3000"}, True),  # another server on this machine
        ({"origin": "http://localhost"}, True),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://[::1"}, True),
        ({"origin": ""}, True),
        ({"sec_fetch_site": "same-origin", "origin": "https://proxied.example"}, False),  # a proxy changed Host
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:3000"}, True),
        ({"sec_fetch_site": "cross-site", "origin": "https://evil.example"}, True),
        ({"sec_fetch_site": "cross-site"}, True),
    ],
)
def test_only_same_origin_pages_may_send_requests(headers: dict[str, str], refused: bool) -> None:
    assert is_refused(CorsPolicy(), host="localhost:8080", **headers) == refused
    for method in ("GET", "HEAD", "OPTIONS"):
        assert not is_refused(CorsPolicy(), method, host="localhost:8080", **headers)


def test_a_default_port_does_not_change_the_origin() -> None:
    assert not is_refused(CorsPolicy(), host="heed.example:443", origin="https://heed.example")
    assert not is_refused(CorsPolicy(), host="heed.example", origin="https://heed.example:443")
    assert is_refused(CorsPolicy(), host="heed.example:8443", origin="https://heed.example")


def test_an_origin_that_is_allowed_may_send_and_another_may_not() -> None:
    for origins in (CorsPolicy((ALLOWED,)), CorsPolicy(("*",))):
        assert not is_refused(origins, host="heed.example", origin=ALLOWED, sec_fetch_site="cross-site")
    assert is_refused(CorsPolicy((ALLOWED,)), host="heed.example", origin=f"{ALLOWED}.evil.example")


@pytest.mark.parametrize("origin", ["good.example", "https://", "https://a.example/", "ftp://a.example", "https://A.b"])
def test_invalid_allowed_origins_are_rejected(origin: str) -> None:
    with pytest.raises(ConfigError, match=f"allowed_origins: '{origin}'"):
        ServeConfig(allowed_origins=(origin,))


def test_cross_origin_posts_are_rejected(server: Running) -> None:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
        answer = CLIENT.post(
            f"{server.address}/alternatives", content=b"q=A", headers={**headers, "Content-Type": content_type}
        )
        error = "Requests from web pages of https://evil.example are not allowed; serve.allowed_origins can allow them"
        assert (answer.status_code, answer.json()) == (403, {"error": error})
    ours = CLIENT.post(f"{server.address}/translate", json=GOOD, headers={"Origin": server.address})
    assert ours.status_code == 200
    assert not any(name.startswith("access-control") for name in ours.headers)


@pytest.fixture(scope="module")
def server_with_origins(folders: tuple[Path, Path]) -> Iterator[Running]:
    with serving(folders[0], "--set", f"serve.allowed_origins={ALLOWED},https://other.example") as running:
        yield running


def test_a_page_of_an_allowed_origin_is_answered_and_may_read_the_answer(server_with_origins: Running) -> None:
    headers = {
        "Origin": ALLOWED,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    preflight = CLIENT.options(f"{server_with_origins.address}/translate", headers=headers)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == ALLOWED
    assert preflight.headers["access-control-allow-methods"] == "GET, POST"
    assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type"
    for status, fields in ((200, GOOD), (400, {})):  # errors can be read too
        answer = CLIENT.post(f"{server_with_origins.address}/translate", json=fields, headers={"Origin": ALLOWED})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, ALLOWED)
        assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in answer.headers
    evil = {**headers, "Origin": "https://evil.example"}
    for answer in (
        CLIENT.options(f"{server_with_origins.address}/translate", headers=evil),
        CLIENT.post(f"{server_with_origins.address}/translate", json=GOOD, headers={"Origin": "https://evil.example"}),
    ):
        assert answer.status_code in (403, 405)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin"


def config(**settings: Any) -> ServeConfig:
    return ServeConfig.model_validate(settings)


def test_accepted_host_names_are_loopback_and_allowed_hosts() -> None:
    loopback = frozenset({"127.0.0.1", "localhost", "::1"})
    assert allowed_host_names(config()) == loopback
    assert allowed_host_names(config(allowed_hosts="MT.example.org,b.example")) == loopback | {
        "mt.example.org",
        "b.example",
    }
    assert allowed_host_names(config(allowed_hosts=["*"])) is None
    assert allowed_host_names(config(host="192.0.2.1")) is None
    assert allowed_host_names(config(host="192.0.2.1", allowed_hosts=["b.example"])) == loopback | {
        "192.0.2.1",
        "b.example",
    }


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"allowed_hosts": "https://a.example"}, r"serve.allowed_hosts has 'https://a.example': expected host names"),
        ({"allowed_hosts": "a.example, b.example"}, r"serve.allowed_hosts has ' b.example'"),
        ({"allowed_hosts": "*.example"}, r"serve.allowed_hosts has '\*.example'"),
        ({"trusted_proxies": "nginx"}, r"serve.trusted_proxies has 'nginx': .* expected addresses or networks"),
        ({"trusted_proxies": "10.0.0.1/8"}, r"serve.trusted_proxies has '10.0.0.1/8': .* has host bits set"),
        ({"trusted_proxies": "*"}, r"serve.trusted_proxies has '\*'"),
    ],
)
def test_names_and_addresses_that_can_never_match_are_refused(settings: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_addresses(config(**settings))
    check_addresses(config(allowed_hosts="a.example,*", trusted_proxies="127.0.0.1,::1,10.0.0.0/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.7", "192.0.2.7"),  # entries forged by the client are on the left
        ("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", "192.0.2.7"),  # two proxies
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.9", "6.6.6.6", "192.0.2.9"),  # not a trusted proxy
    ],
)
def test_x_forwarded_for_is_trusted_from_trusted_proxies_only(peer: str, forwarded: str, client: str) -> None:
    clients: list[str] = []

    async def ask(trusted: list[str]) -> None:
        nothing: Any = None
        await behind_proxies(app, trusted)(dict(scope), nothing, nothing)

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        clients.append(scope["client"][0])

    headers = [(b"x-forwarded-for", forwarded.encode()), (b"forwarded", b"for=7.7.7.7")]
    scope = {"type": "http", "client": (peer, 1), "scheme": "http", "headers": headers}
    for trusted, expected in ((["10.0.0.0/8"], client), ([], peer)):
        asyncio.run(ask(trusted))
        assert clients.pop() == expected


def ask(server: Running, key: str, host: str, client: str) -> int:
    fields = {"q": "A dog", "source": "EN-us", "target": "de_DE", "api_key": key}
    headers = {"Host": host, "X-Forwarded-For": client}
    return CLIENT.post(f"{server.address}/translate", json=fields, headers=headers).status_code


def test_a_server_behind_a_proxy_knows_its_name_its_clients_and_new_keys(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "keys.txt"
    first = add_key(file)
    proxied = ("--set", "serve.allowed_hosts=mt.example.org", "--set", "serve.trusted_proxies=127.0.0.1")
    limits = ("--set", "serve.burst=2", "--set", "serve.requests_per_minute=1")
    with serving(folders[0], "--keys", file, *proxied, *limits) as server:
        assert ask(server, first, "mt.example.org", "192.0.2.1") == 200
        assert ask(server, first, "other.example.org", "192.0.2.1") == 421
        second = add_key(file)  # while it runs
        assert ask(server, second, "MT.example.org:443", "192.0.2.1") == 200
        statuses = [ask(server, "wrong", "mt.example.org", client) for client in ("192.0.2.1",) * 3 + ("192.0.2.2",)]
        assert statuses == [403, 403, 429, 403]  # the rate limit is per client


def test_allowed_hosts_require_keys(folders: tuple[Path, Path]) -> None:
    code, message = refused(folders[0], "--set", "serve.allowed_hosts=mt.example.org")
    assert code == 2
    assert message.startswith(
        "error: serve.allowed_hosts=mt.example.org allows requests from other hosts: require API keys"
    )
