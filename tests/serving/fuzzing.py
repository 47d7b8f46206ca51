"""Random requests, valid and malformed; every response must be JSON and none a server error."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.serving.running import Running

ROUTES = ("/translate", "/detect", "/translate/stream", "/alternatives", "/look", "/languages", "/suggest")
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x/y", "")
NAMES = (
    "q",
    "source",
    "target",
    "format",
    "alternatives",
    "details",
    "prefix",
    "parts",
    "translation",
    "api_key",
    "prompt",
    "max_length",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "stream",
    "pooling",
    "model",
)

ODD = [
    "A dog",
    "\0",
    "\u202eabc",
    "😀" * 100,
    "<b>&lt;</b>",
    "\ufeff",
    "a\u2028b\r\n\tc",
    "  ",
    "\x1c",
    "en",
    "de",
    "auto",
]
texts = st.text(max_size=40) | st.text(st.characters(), max_size=40) | st.sampled_from(ODD)  # with surrogates
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
sensible = st.fixed_dictionaries(
    {"q": texts | st.lists(texts, max_size=3), "source": st.sampled_from(["en", "auto"]), "target": st.just("de")},
    optional={
        "format": st.sampled_from(["text", "html", "json"]),
        "alternatives": st.integers(0, 5),
        "details": st.booleans(),
        "prefix": texts,
        "translation": texts,
        "prompt": texts,
        "max_length": st.integers(-1, 70),
        "temperature": st.floats(0, 3),
        "top_k": st.integers(0, 1000),
        "top_p": st.floats(0, 1),
        "seed": st.integers(0),
        "stream": st.booleans(),
        "pooling": st.sampled_from(["mean", "first"]),
        "model": st.sampled_from(["lm", "c", "m"]),
    },
)
fields = sensible | st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
encodings = st.just("utf-8") | st.sampled_from(["utf-16", "utf-32", "utf-7", "latin-1", "shift_jis"])


def check(answer: Any) -> None:
    assert answer.status_code < 500, (answer.status_code, answer.text)
    kind = answer.headers["content-type"].partition(";")[0]
    if answer.status_code == 200 and kind == "text/event-stream":
        assert answer.text.rpartition("event: ")[2].startswith(("done", 'error\ndata: {"error": "Invalid')), answer.text
    elif answer.status_code != 200 or kind != "text/html":  # /look returns a page if format=html
        content = answer.json()
        assert answer.status_code == 200 or (list(content) == ["error"] and isinstance(content["error"], str))


def fuzz_settings(examples: int) -> settings:
    """Only generate examples, without shrinking; deterministic up to 1000 examples."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples <= 1000,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def fuzz(server: Running, examples: int, routes: Sequence[str] = ROUTES) -> int:
    """Send random requests and check each response; returns their number."""
    profile, sent = fuzz_settings(examples), 0
    client = httpx.Client(verify=False, timeout=60)  # noqa: S501 - no TLS here

    def send(route: str, **request: Any) -> None:
        nonlocal sent
        sent += 1
        check(client.post(server.address + route, **request))

    @profile
    @given(
        st.sampled_from(routes), fields, st.sampled_from(["json", "json", "data", "params"]), st.booleans(), encodings
    )
    def any_fields(route: str, values_sent: dict[str, Any], keyword: str, escaped: bool, encoding: str) -> None:
        if keyword == "json":
            text = json.dumps(values_sent, ensure_ascii=escaped)
            body = text.encode(encoding, "surrogatepass" if encoding == "utf-8" else "replace")
            send(route, content=body, headers={"Content-Type": "application/json"})
        else:
            flat = {name: str(value).encode("utf-8", "surrogatepass")[:3000] for name, value in values_sent.items()}
            send(route, **{keyword: flat})

    @profile
    @given(st.sampled_from(routes), st.binary(max_size=200), st.sampled_from(KINDS))
    def any_bytes(route: str, body: bytes, kind: str) -> None:
        send(route, content=body, headers={"Content-Type": kind})

    with client:
        any_fields()
        any_bytes()
    return sent
