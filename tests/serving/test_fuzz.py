"""Random and damaged requests: every response is JSON, and none is a server error."""

import random
import socket
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as conformance

from tests.serving.fuzzing import fuzz, fuzz_settings
from tests.serving.running import Running

SLOW, ENDLESS = pytest.mark.slow, pytest.mark.endless


@pytest.mark.parametrize("examples", [600, pytest.param(3000, marks=SLOW), pytest.param(20_000, marks=ENDLESS)])
def test_random_requests_get_json_and_never_a_server_error(server: Running, examples: int) -> None:
    print(f"{fuzz(server, examples)} requests")
    assert server.get("/health/ready").status_code == 200
    assert server.log_lines() == []


@pytest.mark.parametrize("examples", [50, pytest.param(400, marks=SLOW), pytest.param(2000, marks=ENDLESS)])
def test_the_server_keeps_to_its_own_openapi_document(server: Running, examples: int) -> None:
    schema, sent = schemathesis.openapi.from_url(f"{server.address}/spec"), 0
    session = requests.Session()
    for operation in schema.get_all_operations():
        assert isinstance(operation, Ok)

        @fuzz_settings(examples)
        @given(case=st.one_of(*(operation.ok().as_strategy(generation_mode=mode) for mode in GenerationMode)))
        def check_case(case: Any) -> None:
            nonlocal sent
            sent += 1
            answer = case.call(base_url=server.address, timeout=60, session=session)
            case.validate_response(
                answer,
                checks=[
                    schemathesis.checks.not_a_server_error,
                    conformance.status_code_conformance,
                    conformance.content_type_conformance,
                    conformance.response_schema_conformance,
                ],
            )

        check_case()
    print(f"{sent} requests")


def test_a_hundred_thousand_emoji_are_too_many(server: Running) -> None:
    for count, status, error in (
        (6_000, 400, "Invalid request: request (6000) exceeds text limit (5000)"),
        (100_000, 413, "Invalid request: the body exceeds 76384 bytes"),
    ):
        answer = server.post("/translate", q="😀" * count, source="en", target="de")
        assert (answer.status_code, answer.json()) == (status, {"error": error})


def test_damaged_http_gets_a_4xx_or_a_closed_connection(server: Running) -> None:
    random.seed(3)
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
    for _ in range(50):
        damaged = bytearray(head)
        for _ in range(random.randint(1, 5)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        with socket.create_connection(server.socket_address, timeout=60) as client:
            client.sendall(bytes(damaged))
            client.shutdown(socket.SHUT_WR)
            answer = client.makefile("rb").read()
        assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 100"))
    assert server.get("/health/ready").status_code == 200
