"""How much a server does, and how it bears more: closed loop, open loop, batching on and off.

    python benchmarks/serve_load.py MODEL [--texts FILE] [--clients 32] [--seconds 10]

Closed loop: so many clients, each asking again as soon as it has its answer. Open loop: requests come at a given rate,
whatever becomes of them. Goodput counts translations that came while it was measured, not refusals; the rest is given
beside it. The server runs in a process of its own on the same machine, so the clients take their share; read ratios.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

TEXTS = ["A dog runs.", "The old man sees a small house.", "Two women walk along the street with their children."]


@dataclass
class Tally:
    """What became of the requests, up to `end`."""

    end: float
    good: list[float] = field(default_factory=list)  # seconds
    refused: list[float] = field(default_factory=list)
    other: int = 0

    def line(self, seconds: float) -> str:
        """For people to read."""
        parts = [f"goodput {len(self.good) / seconds:7.1f}/s"]
        for name, took in (("answers", self.good), ("refusals", self.refused)):
            if len(took) > 1:
                cuts = statistics.quantiles(took, n=100)
                parts.append(
                    f"{len(took)} {name}: " + ", ".join(f"p{p} {1e3 * cuts[p - 1]:.0f} ms" for p in (50, 95, 99))
                )
        return "; ".join([*parts, f"lost {self.other}"])


class Client:
    """One connection, as little as HTTP needs: the clients must not be what is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, text: str, tally: Tally) -> None:
        """One request, one answer."""
        body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        begun = time.monotonic()
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(f"POST /translate HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(answer.split("content-length: ")[1].split("\r\n")[0]))
        except (OSError, asyncio.IncompleteReadError):
            self._streams, tally.other = None, tally.other + 1
            return
        took, status = time.monotonic() - begun, int(answer.split()[1])
        if time.monotonic() <= tally.end:
            (tally.good if status == 200 else tally.refused).append(took)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()


async def closed(port: int, texts: list[str], clients: int, seconds: float) -> Tally:
    """Each client asks again as soon as it has its answer."""
    end = time.monotonic() + seconds
    tally = Tally(end)

    async def client(number: int) -> None:
        connection, choose = Client(port), random.Random(number)
        while time.monotonic() < end:
            await connection.ask(choose.choice(texts), tally)
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return tally


async def open_loop(port: int, texts: list[str], rate: float, seconds: float) -> Tally:
    """Requests at random moments, `rate` a second, on connections that are used again."""
    end = time.monotonic() + seconds
    tally, idle, tasks, choose = Tally(end), list[Client](), set[asyncio.Task[None]](), random.Random(0)

    async def one() -> None:
        connection = idle.pop() if idle else Client(port)
        await connection.ask(choose.choice(texts), tally)
        idle.append(connection)

    due = time.monotonic()
    while (due := due + choose.expovariate(rate)) < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.ensure_future(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return tally


class Server:
    """`heed serve` in a process of its own."""

    def __init__(self, model: Path, *settings: str) -> None:
        unlimited = ("serve.requests_per_minute=100000000", "serve.burst=100000000")
        options = [f"--set={setting}" for setting in (*unlimited, *settings)]
        start = "from heed.cli.main import main; main()"
        command = [sys.executable, "-c", start, "serve", str(model), "--port", "0", "--languages", "en-de", *options]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.port = int(self._process.stderr.readline().rsplit(":", 1)[1])

    def __enter__(self) -> "Server":
        asyncio.run(closed(self.port, TEXTS, 4, 1.0))  # warm
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    texts = given.texts.read_text(encoding="utf-8").splitlines()[:1000] if given.texts else TEXTS
    global SOURCE, TARGET
    data = json.loads((given.model / "config.json").read_text(encoding="utf-8"))["data"]
    SOURCE, TARGET = data["source_language"], data["target_language"]
    rates = {}
    for batching in ("false", "true"):
        with Server(given.model, f"serve.batching={batching}") as server:
            tally = asyncio.run(closed(server.port, texts, given.clients, given.seconds))
            rates[batching] = len(tally.good) / given.seconds
            print(f"closed, {given.clients} clients, batching {batching}: {tally.line(given.seconds)}")
            if batching == "true":
                for times in (0.8, 2, 10):
                    tally = asyncio.run(open_loop(server.port, texts, times * rates["true"], given.seconds))
                    print(f"open, {times:g} × {rates['true']:.0f}/s: {tally.line(given.seconds)}")
    print(f"batching gives {rates['true'] / rates['false']:.2f} times the answers a second")


if __name__ == "__main__":
    main()
