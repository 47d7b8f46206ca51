"""Web pages of other origins make this server do nothing, unless the settings allow theirs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heed.errors import ConfigError
from heed.serving.config import ServeConfig
from heed.serving.guard import Origins
from tests.serving.running import CLIENT, Running, serving

GOOD = {"q": "A dog", "source": "en", "target": "de"}
ALLOWED = "https://good.example"


def is_refused(origins: Origins, method: str = "POST", **headers: str) -> bool:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    problem = origins.refusal({"type": "http", "method": method, "headers": named})
    assert problem is None or problem.status == 403
    return problem is not None


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),  # not a browser
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "http://LOCALHOST:8080"}, False),
        ({"origin": "http://localhost:3000"}, True),  # another server of this machine
        ({"origin": "http://localhost"}, True),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://[::1"}, True),
        ({"origin": ""}, True),
        ({"sec_fetch_site": "same-origin", "origin": "https://proxied.example"}, False),  # Host was changed on the way
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:3000"}, True),
        ({"sec_fetch_site": "cross-site", "origin": "https://evil.example"}, True),
        ({"sec_fetch_site": "cross-site"}, True),
    ],
)
def test_only_pages_of_our_own_may_send_requests(headers: dict[str, str], refused: bool) -> None:
    assert is_refused(Origins(), host="localhost:8080", **headers) == refused
    for method in ("GET", "HEAD", "OPTIONS"):
        assert not is_refused(Origins(), method, host="localhost:8080", **headers)


def test_a_port_that_goes_without_saying_makes_no_other_origin() -> None:
    assert not is_refused(Origins(), host="heed.example:443", origin="https://heed.example")
    assert not is_refused(Origins(), host="heed.example", origin="https://heed.example:443")
    assert is_refused(Origins(), host="heed.example:8443", origin="https://heed.example")


def test_an_origin_that_is_allowed_may_send_and_another_may_not() -> None:
    for origins in (Origins((ALLOWED,)), Origins(("*",))):
        assert not is_refused(origins, host="heed.example", origin=ALLOWED, sec_fetch_site="cross-site")
    assert is_refused(Origins((ALLOWED,)), host="heed.example", origin=f"{ALLOWED}.evil.example")


@pytest.mark.parametrize("origin", ["good.example", "https://", "https://a.example/", "ftp://a.example", "https://A.b"])
def test_what_is_no_origin_is_refused_as_a_setting(origin: str) -> None:
    with pytest.raises(ConfigError, match=f"allowed_origins: '{origin}'"):
        ServeConfig(allowed_origins=(origin,))


def test_a_page_elsewhere_makes_a_server_do_nothing(server: Running) -> None:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
        answer = CLIENT.post(
            f"{server.address}/alternatives", content=b"q=A", headers={**headers, "Content-Type": content_type}
        )
        error = "Web pages of https://evil.example may not send requests here; serve.allowed_origins can allow it"
        assert (answer.status_code, answer.json()) == (403, {"error": error})
    ours = CLIENT.post(f"{server.address}/translate", json=GOOD, headers={"Origin": server.address})
    assert ours.status_code == 200
    assert not any(name.startswith("access-control") for name in ours.headers)


@pytest.fixture(scope="module")
def open_to_one(folders: tuple[Path, Path]) -> Iterator[Running]:
    with serving(folders[0], "--set", f"serve.allowed_origins={ALLOWED},https://other.example") as running:
        yield running


def test_a_page_of_an_allowed_origin_is_answered_and_may_read_the_answer(open_to_one: Running) -> None:
    asked = {
        "Origin": ALLOWED,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    preflight = CLIENT.options(f"{open_to_one.address}/translate", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == ALLOWED
    assert preflight.headers["access-control-allow-methods"] == "GET, POST"
    assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type"
    for status, fields in ((200, GOOD), (400, {})):  # errors can be read too
        answer = CLIENT.post(f"{open_to_one.address}/translate", json=fields, headers={"Origin": ALLOWED})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, ALLOWED)
        assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in answer.headers
    evil = {**asked, "Origin": "https://evil.example"}
    for refused in (
        CLIENT.options(f"{open_to_one.address}/translate", headers=evil),
        CLIENT.post(f"{open_to_one.address}/translate", json=GOOD, headers={"Origin": "https://evil.example"}),
    ):
        assert refused.status_code in (403, 405)
        assert "access-control-allow-origin" not in refused.headers
        assert refused.headers["vary"] == "Origin"
