"""Requests that nobody would send: whatever comes, an answer in JSON, and never a defect of ours."""

import json
import random
import socket
from collections.abc import Sequence
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as conformance

from tests.serving.running import CLIENT, Running

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
    elif answer.status_code != 200 or kind != "text/html":  # the page that /look gives where it is asked for
        found = answer.json()
        assert answer.status_code == 200 or (list(found) == ["error"] and isinstance(found["error"], str))


def quick(examples: int) -> settings:
    """Generate and nothing else; the same every time, unless there are many."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples <= 1000,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def fuzz(server: Running, examples: int, routes: Sequence[str] = ROUTES) -> int:
    """How many requests were sent; each is checked."""
    quickly, sent = quick(examples), 0

    def send(route: str, **how: Any) -> None:
        nonlocal sent
        sent += 1
        check(CLIENT.post(server.address + route, **how))

    @quickly
    @given(
        st.sampled_from(routes), fields, st.sampled_from(["json", "json", "data", "params"]), st.booleans(), encodings
    )
    def any_fields(route: str, given: dict[str, Any], where: str, escaped: bool, encoding: str) -> None:
        if where == "json":
            text = json.dumps(given, ensure_ascii=escaped)
            body = text.encode(encoding, "surrogatepass" if encoding == "utf-8" else "replace")
            send(route, content=body, headers={"Content-Type": "application/json"})
        else:
            flat = {name: str(value).encode("utf-8", "surrogatepass")[:3000] for name, value in given.items()}
            send(route, **{where: flat})

    @quickly
    @given(st.sampled_from(routes), st.binary(max_size=200), st.sampled_from(KINDS))
    def any_bytes(route: str, body: bytes, kind: str) -> None:
        send(route, content=body, headers={"Content-Type": kind})

    any_fields()
    any_bytes()
    return sent


SLOW, ENDLESS = pytest.mark.slow, pytest.mark.endless


@pytest.mark.parametrize("examples", [1000, pytest.param(3000, marks=SLOW), pytest.param(20_000, marks=ENDLESS)])
def test_whatever_is_sent_is_answered_in_json_and_without_a_defect(server: Running, examples: int) -> None:
    print(f"{fuzz(server, examples)} requests")
    assert server.get("/health/ready").status_code == 200
    assert server.logged() == []


@pytest.mark.parametrize("examples", [80, pytest.param(400, marks=SLOW), pytest.param(2000, marks=ENDLESS)])
def test_the_server_keeps_to_its_own_openapi_document(server: Running, examples: int) -> None:
    schema, sent = schemathesis.openapi.from_url(f"{server.address}/spec"), 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)

        @quick(examples)
        @given(case=st.one_of(*(found.ok().as_strategy(generation_mode=mode) for mode in GenerationMode)))
        def keeps_to_it(case: Any) -> None:
            nonlocal sent
            sent += 1
            answer = case.call(base_url=server.address, timeout=60)
            case.validate_response(
                answer,
                checks=[
                    schemathesis.checks.not_a_server_error,
                    conformance.status_code_conformance,
                    conformance.content_type_conformance,
                    conformance.response_schema_conformance,
                ],
            )

        keeps_to_it()
    print(f"{sent} requests")


def test_a_hundred_thousand_emoji_are_too_many(server: Running) -> None:
    for count, status, error in (
        (6_000, 400, "Invalid request: request (6000) exceeds text limit (5000)"),
        (100_000, 413, "Invalid request: the body exceeds 76384 bytes"),
    ):
        answer = server.post("/translate", q="😀" * count, source="en", target="de")
        assert (answer.status_code, answer.json()) == (status, {"error": error})


def test_bytes_that_are_no_requests_end_in_an_answer_or_in_silence(server: Running) -> None:
    random.seed(3)
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
    for _ in range(50):
        damaged = bytearray(head)
        for _ in range(random.randint(1, 5)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        with socket.create_connection(server.place, timeout=60) as client:
            client.sendall(bytes(damaged))
            client.shutdown(socket.SHUT_WR)
            answer = client.makefile("rb").read()
        assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 100"))
    assert server.get("/health/ready").status_code == 200
