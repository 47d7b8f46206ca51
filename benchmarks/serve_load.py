"""How much a server does, and how it bears more: closed loop, open loop, batching on and off.

    python benchmarks/serve_load.py MODEL [--texts FILE] [--clients 32] [--crowd 1280] [--seconds 10] [--rounds 3]

Closed loop: so many clients, each asking again as soon as it has its answer. Open loop: requests come at a given rate,
whatever becomes of them. A crowd is a closed loop of far more clients than the server takes in; who is refused asks
again at once. Goodput counts translations that came while it was measured, not refusals; the rest is given beside it.
Two servers run side by side, one that batches and one that translates one at a time, and each round measures
all of it, one after the other, so that what else the machine does falls on all alike: read ratios, and their middle.
The servers run in processes of their own on the same machine, so the clients take their share. Where others take theirs
too, translations for each second of processor time that the server got (Linux) say more than those for each second.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TEXTS = ["A dog runs.", "The old man sees a small house.", "Two women walk along the street with their children."]
TIMES = (0.8, 1.7, 5.0, 10.0)  # rates of the open loop, in parts of what the closed loop reached


@dataclass
class Tally:
    """What became of the requests, up to `end`."""

    seconds: float
    end: float = 0.0
    good: list[float] = field(default_factory=list)  # seconds
    refused: list[float] = field(default_factory=list)
    other: int = 0  # lost, or an answer that is neither
    processor: float = float("nan")  # seconds that the server got
    sent: int = 0

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.seconds

    @property
    def goodput(self) -> float:
        """Translations a second."""
        return len(self.good) / self.seconds

    @property
    def thrift(self) -> float:
        """Translations for each second of the server's processor time."""
        return len(self.good) / self.processor

    def line(self) -> str:
        """For people to read."""
        parts = [f"sent {self.sent / self.seconds:7.1f}/s; goodput {self.goodput:7.1f}/s"]
        for name, took in (("answers", self.good), ("refusals", self.refused)):
            if len(took) > 1:
                shown = ", ".join(f"p{part} {1e3 * percentile(took, part):.0f}" for part in (50, 95, 99))
                parts.append(f"{len(took)} {name}, ms: {shown}, most {1e3 * max(took):.0f}")
        return "; ".join([*parts, f"lost {self.other}", f"{self.thrift:.1f} a processor second"])


def percentile(took: Sequence[float], part: int) -> float:
    """The time that `part` percent were within."""
    return statistics.quantiles(took, n=100)[part - 1] if len(took) > 1 else float("nan")


def spread(found: Sequence[float], how: str) -> str:
    """The middle, and from where to where."""
    return f"{statistics.median(found):{how}} ({min(found):{how}} to {max(found):{how}})"


class Client:
    """One connection, as little as HTTP needs: the clients must not be what is measured."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, text: str, tally: Tally) -> None:
        """One request, one answer."""
        body = json.dumps({"q": text, "source": self._server.source, "target": self._server.target}).encode()
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        tally.sent += 1
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._server.port)
            reader, writer = self._streams
            begun = time.monotonic()
            writer.write(f"POST /translate HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(answer.split("content-length: ")[1].split("\r\n")[0]))
        except (OSError, asyncio.IncompleteReadError):
            self._streams, tally.other = None, tally.other + 1
            return
        now, status = time.monotonic(), int(answer.split()[1])
        if status not in (200, 503):
            tally.other += 1
        elif now <= tally.end:
            (tally.good if status == 200 else tally.refused).append(now - begun)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()


async def closed(server: "Server", texts: list[str], clients: int, seconds: float) -> Tally:
    """Each client asks again as soon as it has its answer."""
    tally, before = Tally(seconds), server.processor()

    async def client(number: int) -> None:
        connection, choose = Client(server), random.Random(number)
        while time.monotonic() < tally.end:
            await connection.ask(choose.choice(texts), tally)
        connection.close()

    asking = asyncio.gather(*(client(number) for number in range(clients)))
    await asyncio.sleep(seconds)
    tally.processor = server.processor() - before
    await asking
    return tally


async def open_loop(server: "Server", texts: list[str], rate: float, seconds: float) -> Tally:
    """Requests at random moments, `rate` a second, on connections that are used again."""
    tally, before = Tally(seconds), server.processor()
    idle, tasks, choose = list[Client](), set[asyncio.Task[None]](), random.Random(0)

    async def one() -> None:
        connection = idle.pop() if idle else Client(server)
        await connection.ask(choose.choice(texts), tally)
        idle.append(connection)

    due = time.monotonic()
    while (due := due + choose.expovariate(rate)) < tally.end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.ensure_future(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    tally.processor = server.processor() - before
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return tally


class Server:
    """`heed serve` in a process of its own."""

    def __init__(self, model: Path, *settings: str) -> None:
        data = json.loads((model / "config.json").read_text(encoding="utf-8"))["data"]
        self.source, self.target = data["source_language"] or "en", data["target_language"] or "de"
        unlimited = ("serve.requests_per_minute=100000000", "serve.burst=100000000")
        options = [f"--set={setting}" for setting in (*unlimited, *settings)]
        start = "from heed.cli.main import main; main()"
        languages = f"{self.source}-{self.target}"
        command = [sys.executable, "-c", start, "serve", str(model), "--port", "0", "--languages", languages, *options]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process = subprocess.Popen(command, stderr=self._said)
        self.port = self._find_port()

    def _find_port(self) -> int:
        while self._process.poll() is None:
            said = os.pread(self._said.fileno(), 1000, 0).decode()
            if said.startswith("heed serves on ") and said.endswith("\n"):
                return int(said.rsplit(":", 1)[1])
            time.sleep(0.1)
        raise SystemExit(os.pread(self._said.fileno(), 10_000, 0).decode())

    def processor(self) -> float:
        """Seconds of processor time so far, of all its processes."""
        seconds, processes = 0.0, [self._process.pid]
        try:
            for process in processes:  # which grows as children are found
                folder = Path(f"/proc/{process}")
                processes += map(int, (folder / f"task/{process}/children").read_text().split())
                user, system = (folder / "stat").read_text().rpartition(") ")[2].split()[11:13]
                seconds += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return float("nan")
        return seconds

    def __enter__(self) -> "Server":
        asyncio.run(closed(self, TEXTS, 4, 1.0))  # warm
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._said.close()


@dataclass(frozen=True)
class Round:
    """What one round found out."""

    batching: tuple[float, float]  # against one at a time: per second, and per second of processor time
    shares: dict[str, tuple[float, float]]  # goodput of the best that was reached in this round, likewise; by load
    refusals: dict[str, list[float]]


def measure(batching: Server, single: Server, texts: list[str], given: argparse.Namespace) -> Round:
    """All of it once."""
    clients, seconds = given.clients, given.seconds
    one = asyncio.run(closed(single, texts, clients, seconds))
    print(f"closed, {clients} clients, one at a time: {one.line()}", flush=True)
    many = asyncio.run(closed(batching, texts, clients, seconds))
    print(f"closed, {clients} clients, batching:      {many.line()}", flush=True)
    loads: dict[str, Tally] = {}
    for times in TIMES:
        name = f"open, {times:g} times capacity"
        loads[name] = asyncio.run(open_loop(batching, texts, times * many.goodput, seconds))
        print(f"{name}: {loads[name].line()}", flush=True)
    if given.crowd:
        name = f"closed, {given.crowd} clients that ask again at once"
        loads[name] = asyncio.run(closed(batching, texts, given.crowd, seconds))
        print(f"{name}: {loads[name].line()}", flush=True)
    tallies = [many, *loads.values()]
    best = max(tally.goodput for tally in tallies), max(tally.thrift for tally in tallies)
    return Round(
        (many.goodput / one.goodput, many.thrift / one.thrift),
        {name: (tally.goodput / best[0], tally.thrift / best[1]) for name, tally in loads.items()},
        {name: tally.refused for name, tally in loads.items()},
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, help="a file with a text in each line")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--crowd", type=int, default=1280, help="clients of the crowd; 0: none")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    texts = given.texts.read_text(encoding="utf-8").splitlines()[:1000] if given.texts else TEXTS
    with Server(given.model) as batching, Server(given.model, "serve.batching=false") as single:
        rounds = [measure(batching, single, texts, given) for _ in range(given.rounds)]
    for place, unit in enumerate(("per second", "per second of the server's processor time")):
        print(f"translations {unit}:")
        print(f"  batching against one at a time: {spread([one.batching[place] for one in rounds], '.2f')} times")
        for name in rounds[0].shares:
            print(f"  {name}: {spread([one.shares[name][place] for one in rounds], '.0%')} of the best")
    for name in rounds[0].refusals:
        refusals = [took for one in rounds for took in one.refusals[name]]
        shown = ", ".join(f"p{part} {1e3 * percentile(refusals, part):.0f} ms" for part in (50, 95, 99))
        print(f"{name}: {len(refusals)} refusals, {shown}")


if __name__ == "__main__":
    main()
