"""Concurrent clients, disconnecting clients, deadlines and queue limits."""

import asyncio
import json
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from heed import Translator
from tests.serving.clients import active_requests, distinct_sentences, start, wait_for_active_requests
from tests.serving.conftest import MANY
from tests.serving.folders import TOKENIZER, make_folder
from tests.serving.running import CLIENT, Running, serving


async def translate_all(server: Running, texts: list[str], concurrent: int) -> list[str]:
    limits = httpx.Limits(max_connections=concurrent)
    async with httpx.AsyncClient(verify=False, timeout=60, limits=limits) as client:  # noqa: S501 - no TLS here
        semaphore = asyncio.Semaphore(concurrent)

        async def translate(text: str) -> str:
            async with semaphore:
                fields = {"q": text, "source": "en", "target": "de"}
                answer = await client.post(f"{server.address}/translate", json=fields)
                assert answer.status_code == 200, answer.text
                return str(answer.json()["translatedText"])

        return await asyncio.gather(*(translate(text) for text in texts))


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_batching_never_changes_or_swaps_translations(server: Running, translator: Translator, count: int) -> None:
    texts = distinct_sentences(count)
    answers = asyncio.run(translate_all(server, texts, 40))
    assert answers == translator(texts)
    assert answers[:count:20] == [translator(text) for text in texts[:count:20]]  # and those of single texts
    assert len(set(answers)) > count // 4


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose translations take longer than its deadline, with a queue of three."""
    folder = make_folder(tmp_path_factory.mktemp("models") / "slow", max_length=8000)
    limits = ("--set", "serve.queue=3", "--set", "serve.deadline=1", "--set", "search.min_length=7900")
    with serving(folder, *limits, *MANY, "--set", "search.no_repeat_ngram=1500", "--set", "search.beam=50") as running:
        yield running


def test_a_request_past_its_deadline_gets_504(slow: Running) -> None:
    answer = slow.post("/translate", q="A dog", source="en", target="de")
    expected = {"error": "No result within 1 s: send less text per request, or try again later"}
    assert (answer.status_code, answer.json()) == (504, expected)
    with CLIENT.stream(
        "POST", f"{slow.address}/translate/stream", json={"q": "A dog", "source": "en", "target": "de"}
    ) as stream:
        assert stream.read().decode().endswith(f"event: error\ndata: {json.dumps(expected)}\n\n")
    wait_for_active_requests(slow, 0)


def test_a_full_server_answers_503_at_once_and_disconnects_free_slots(slow: Running) -> None:
    clients = [start(slow) for _ in range(3)]
    wait_for_active_requests(slow, 3)
    answer = slow.post("/translate", q="A dog", source="en", target="de")
    expected = {"error": "Too busy: 3 requests are queued or running"}
    assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (503, expected, "1")
    assert slow.get("/languages").status_code == 200
    for client in clients:
        client.close()
    wait_for_active_requests(slow, 0)
    metrics = slow.get("/metrics").text
    assert 'heed_requests_total{route="/translate",status="499"} 3' in metrics


def test_a_hundred_stalled_clients_do_not_delay_others(server: Running, translator: Translator) -> None:
    with ExitStack() as clients:
        for number in range(100):
            client = clients.enter_context(socket.create_connection(server.socket_address, timeout=60))
            head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            client.sendall(head[:-10] if number % 2 else head + b"\r\n{")
        texts = distinct_sentences(50)
        assert asyncio.run(translate_all(server, texts, 10)) == translator(texts)
        assert active_requests(server) == 0  # incomplete requests take no slot


def test_disconnecting_from_a_stream_at_any_time_frees_its_slot(server: Running) -> None:
    random.seed(2)
    for number in range(150):
        with start(server, "A dog.\n" * 5, "/translate/stream") as client:
            if number % 3:
                time.sleep(random.random() * 0.01)
            if number % 5 == 0:
                # Close with a TCP reset.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for_active_requests(server, 0)


def test_a_short_text_does_not_wait_for_long_ones(tmp_path: Path) -> None:
    """The short one is answered while the long ones are still running."""
    folder = make_folder(tmp_path / "ende", max_length=1000)
    search = ("--set", "search.min_length=400", "--set", "search.no_repeat_ngram=1000")
    with serving(folder, *search, *MANY) as server, ExitStack() as clients:
        long = [clients.enter_context(start(server, "the old dog sees a bird and a cat. " * 20)) for _ in range(3)]
        wait_for_active_requests(server, 3)
        assert server.post("/translate", q="A dog", source="en", target="de").status_code == 200
        assert active_requests(server) == 3
        assert not any(select.select([client], [], [], 0)[0] for client in long)


def test_a_translation_has_at_most_fifty_tokens_more_than_its_source(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "ende", max_length=None, ends=False)
    with serving(folder, *MANY) as server:
        for text in ("A dog", "the old dog sees a bird"):
            fields = {"q": text, "source": "en", "target": "de", "details": True}
            details = server.post("/translate", **fields).json()["details"]
            assert len(details["tokens"]) == len(TOKENIZER.encode([text])[0]) + 50
    with serving(folder, *MANY, "--set", "search.max_length=7") as server:
        assert len(server.post("/translate", **fields).json()["details"]["tokens"]) == 7
