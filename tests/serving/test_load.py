"""Many clients at once, clients that go away, work that takes too long, and the end."""

import asyncio
import json
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from heed import Translator
from heed.cli.serve import serve
from heed.errors import ConfigError
from tests.cli.command import heed
from tests.serving.conftest import MANY
from tests.serving.folders import make_folder
from tests.serving.running import CLIENT, Running, serving


def marked(count: int) -> list[str]:
    """Sentences that all differ, of unequal lengths."""
    random.seed(1)
    words = ["dog", "cat", "bird", "house", "sees", "old", "the", "and"]
    return [f"{n} {' '.join(random.choices(words, k=random.randint(1, 6)))}." for n in range(count)]


async def ask_all(server: Running, texts: list[str], at_once: int) -> list[str]:
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(verify=False, timeout=60, limits=limits) as client:  # noqa: S501 - no TLS here
        gate = asyncio.Semaphore(at_once)

        async def ask(text: str) -> str:
            async with gate:
                fields = {"q": text, "source": "en", "target": "de"}
                answer = await client.post(f"{server.address}/translate", json=fields)
                assert answer.status_code == 200, answer.text
                return str(answer.json()["translatedText"])

        return await asyncio.gather(*(ask(text) for text in texts))


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_batching_never_changes_an_answer_and_never_swaps_two(
    server: Running, translator: Translator, count: int
) -> None:
    texts = marked(count)
    answers = asyncio.run(ask_all(server, texts, 40))
    assert answers == translator(texts)
    assert answers[:count:20] == [translator(text) for text in texts[:count:20]]  # not even a batch of our own
    assert len(set(answers)) > count // 4


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose translations take as long as it lets them, with few places."""
    folder = make_folder(tmp_path_factory.mktemp("models") / "slow", max_length=2000)
    limits = ("--set", "serve.queue=3", "--set", "serve.deadline=1", "--set", "search.min_length=1500")
    with serving(folder, *limits, *MANY, "--set", "search.no_repeat_ngram=1500") as running:
        yield running


def start(server: Running, text: str = "A dog") -> socket.socket:
    """Send a request and do not wait."""
    host, port = server.address.removeprefix("http://").split(":")
    body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
    client = socket.create_connection((host, int(port)), timeout=60)
    head = (
        f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    client.sendall(f"{head}\r\n\r\n".encode() + body)
    return client


def in_work(server: Running) -> int:
    lines = server.get("/metrics").text.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("heed_requests_in_work ")))


def until(server: Running, count: int) -> None:
    for _ in range(200):
        if in_work(server) == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{in_work(server)} requests are in work, not {count}")


def test_what_takes_too_long_is_given_up(slow: Running) -> None:
    answer = slow.post("/translate", q="A dog", source="en", target="de")
    expected = {"error": "No answer within 1 s: send less text at a time, or try later"}
    assert (answer.status_code, answer.json()) == (504, expected)
    with CLIENT.stream(
        "POST", f"{slow.address}/translate/stream", json={"q": "A dog", "source": "en", "target": "de"}
    ) as stream:
        assert stream.read().decode().endswith(f"event: error\ndata: {json.dumps(expected)}\n\n")
    until(slow, 0)


def test_a_full_house_refuses_at_once_and_who_hangs_up_makes_room(slow: Running) -> None:
    clients = [start(slow) for _ in range(3)]
    until(slow, 3)
    answer = slow.post("/translate", q="A dog", source="en", target="de")
    expected = {"error": "Too busy: 3 requests are waiting already"}
    assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (503, expected, "1")
    assert slow.get("/languages").status_code == 200
    for client in clients:
        client.close()
    until(slow, 0)
    metrics = slow.get("/metrics").text
    assert 'heed_requests_total{route="/translate",status="499"} 3' in metrics


def test_slow_clients_hold_nobody_up(server: Running, translator: Translator) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(100)]
    for client in clients:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    answer = server.post("/translate", q="A dog", source="en", target="de")
    assert answer.json() == {"translatedText": translator("A dog")}
    for client in clients:
        client.close()


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_signal_ends_it_in_order_and_no_request_is_lost(folders: tuple[Path, Path], times: int) -> None:
    for _ in range(times):
        with serving(folders[0], *MANY) as server:
            answered = asyncio.run(_ask_until_the_end(server))
            assert server.command.ends_within(30)
            assert server.command.wait()[0] == 0
        assert answered["lost"] == 0
        assert answered["200"] > 20
        assert answered["503"] > 0  # those who came after the signal were told


async def _ask_until_the_end(server: Running) -> dict[str, int]:
    """Twenty clients ask and ask; a signal comes; each goes on until it is told that the server is ending."""
    answered = {"200": 0, "503": 0, "lost": 0}

    async def client(number: int) -> None:
        async with httpx.AsyncClient(verify=False, timeout=60) as connection:  # noqa: S501 - no TLS here
            for turn in range(1000):
                fields = {"q": f"{number} dogs {turn}", "source": "en", "target": "de"}
                try:
                    answer = await connection.post(f"{server.address}/translate", json=fields)
                except httpx.HTTPError:
                    answered["lost"] += 1
                    return
                answered[str(answer.status_code)] += 1
                if answer.status_code == 503:
                    assert answer.json() == {"error": "This server is shutting down"}
                    return

    async def end() -> None:
        await asyncio.sleep(1)
        subprocess.run(["kill", "-TERM", str(server.process)], check=True)

    await asyncio.gather(end(), *(client(number) for number in range(20)))
    return answered


def test_an_interrupt_ends_it_with_130(folders: tuple[Path, Path]) -> None:
    with serving(folders[0]) as server:
        assert server.end(signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "heed serve needs a model folder: heed serve runs/ende"),
        (["{ende}", "--host", "::"], "--host :: lets others in: ask for keys"),
        (["{ende}", "--set", "serve.que=3"], "unknown setting 'que' in ServeConfig: did you mean 'queue'?"),
        (["{ende}", "--set", "serve.queue=0"], "queue = 0: input should be greater than 0"),
        (["{ende}", "--set", "model.norm=pre"], "--set model.…: only serve and search can be set here"),
        (["--new-key"], "--new-key needs a file to add the key's hash to"),
        (["nothing"], "nothing is not a model folder: it has no manifest.json"),
    ],
)
def test_what_cannot_be_served_says_why(folders: tuple[Path, Path], arguments: list[str], error: str) -> None:
    done = heed("serve", *(argument.replace("{ende}", str(folders[0])) for argument in arguments))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert error in done.stderr


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.cli.serve.importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs fastapi, uvicorn, python_multipart: .* pip install 'heed\[serve\]'"):
        serve([Path("runs/ende")])


def test_a_port_that_is_taken_is_named(server: Running, folders: tuple[Path, Path]) -> None:
    port = server.address.rsplit(":", 1)[1]
    done = heed("serve", str(folders[0]), "--port", port)
    assert done.returncode == 2
    assert done.stderr == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port\n"


def test_a_new_key_is_shown_once_and_opens_the_door(folders: tuple[Path, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    done = heed("serve", "--new-key", "--keys", str(keys))
    with serving(folders[0], "--keys", keys) as server:
        answer = server.post("/translate", q="A dog", source="en", target="de", api_key=done.stdout.strip())
        assert answer.status_code == 200
