"""Load test of `heed serve`: goodput and latency in a closed and an open loop, with and without dynamic batching.

    python benchmarks/serve_load.py MODEL [--texts FILE] [--clients 32] [--crowd 1280] [--seconds 10] [--rounds 3]

Closed loop: each client sends its next request when it has the reply to the last. Open loop: requests arrive at a given
rate, whether or not earlier ones are done. Crowd: a closed loop of far more clients than the server admits; refused
clients retry at once. Goodput counts translations completed during the measurement, not refusals.
Two servers run side by side, one with dynamic batching and one without; each round measures both, so that other load
falls on both alike: compare ratios, and their median. Clients and servers share the machine. Where it has other load,
translations per CPU second of the server (Linux) are more reliable than translations per second.
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
TIMES = (0.8, 1.7, 5.0, 10.0)  # open-loop rates, relative to the goodput of the closed loop


@dataclass
class Tally:
    """The results of the requests that were done before `end`."""

    seconds: float
    end: float = 0.0
    good: list[float] = field(default_factory=list)  # latencies, seconds
    refused: list[float] = field(default_factory=list)  # latencies of 503 replies
    other: int = 0  # lost connections and other status codes
    processor: float = float("nan")  # CPU seconds of the server
    sent: int = 0

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.seconds

    @property
    def goodput(self) -> float:
        """Translations per second."""
        return len(self.good) / self.seconds

    @property
    def per_cpu_second(self) -> float:
        """Translations per CPU second of the server."""
        return len(self.good) / self.processor

    def line(self) -> str:
        """A summary in one line."""
        parts = [f"sent {self.sent / self.seconds:7.1f}/s; goodput {self.goodput:7.1f}/s"]
        for name, took in (("replies", self.good), ("refusals", self.refused)):
            if len(took) > 1:
                shown = ", ".join(f"p{part} {1e3 * percentile(took, part):.0f}" for part in (50, 95, 99))
                parts.append(f"{len(took)} {name}, ms: {shown}, max {1e3 * max(took):.0f}")
        return "; ".join([*parts, f"lost {self.other}", f"{self.per_cpu_second:.1f} per CPU second"])


def percentile(took: Sequence[float], part: int) -> float:
    """The latency that `part` percent of the requests stay below."""
    return statistics.quantiles(took, n=100)[part - 1] if len(took) > 1 else float("nan")


def spread(values: Sequence[float], spec: str) -> str:
    """Median, minimum and maximum."""
    return f"{statistics.median(values):{spec}} ({min(values):{spec}} to {max(values):{spec}})"


class Client:
    """A minimal HTTP client with one connection, cheap enough not to dominate the measurement."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, text: str, tally: Tally) -> None:
        """Send a request and record its result."""
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
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()


async def closed(server: "Server", texts: list[str], clients: int, seconds: float) -> Tally:
    """Each client sends its next request when it has a reply."""
    tally, before = Tally(seconds), server.processor()

    async def client(number: int) -> None:
        connection, choose = Client(server), random.Random(number)
        while time.monotonic() < tally.end:
            await connection.request(choose.choice(texts), tally)
        connection.close()

    asking = asyncio.gather(*(client(number) for number in range(clients)))
    await asyncio.sleep(seconds)
    tally.processor = server.processor() - before
    await asking
    return tally


async def open_loop(server: "Server", texts: list[str], rate: float, seconds: float) -> Tally:
    """Poisson arrivals at `rate` per second, on reused connections."""
    tally, before = Tally(seconds), server.processor()
    idle, tasks, choose = list[Client](), set[asyncio.Task[None]](), random.Random(0)

    async def send() -> None:
        connection = idle.pop() if idle else Client(server)
        await connection.request(choose.choice(texts), tally)
        idle.append(connection)

    due = time.monotonic()
    while (due := due + choose.expovariate(rate)) < tally.end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.ensure_future(send())
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
        arguments = [f"--set={setting}" for setting in (*unlimited, *settings)]
        start = "from heed.cli.main import main; main()"
        languages = f"{self.source}-{self.target}"
        command = [
            sys.executable,
            "-c",
            start,
            "serve",
            str(model),
            "--port",
            "0",
            "--languages",
            languages,
            *arguments,
        ]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process = subprocess.Popen(command, stderr=self._stderr)
        self.port = self._find_port()

    def _find_port(self) -> int:
        while self._process.poll() is None:
            line, end, _ = os.pread(self._stderr.fileno(), 1000, 0).decode().partition("\n")
            if line.startswith("heed serves on ") and end:
                return int(line.rsplit(":", 1)[1])
            time.sleep(0.1)
        raise SystemExit(os.pread(self._stderr.fileno(), 10_000, 0).decode())

    def processor(self) -> float:
        """CPU seconds so far, of all its processes."""
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
        asyncio.run(closed(self, TEXTS, 4, 1.0))  # warm-up
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._stderr.close()


@dataclass(frozen=True)
class Round:
    """The results of one round."""

    batching: tuple[float, float]  # speedup by batching: per second, and per CPU second
    shares: dict[str, tuple[float, float]]  # by load: goodput relative to the round's best, per second and CPU second
    refusals: dict[str, list[float]]


def measure(batching: Server, single: Server, texts: list[str], options: argparse.Namespace) -> Round:
    """Measure every load once."""
    clients, seconds = options.clients, options.seconds
    unbatched = asyncio.run(closed(single, texts, clients, seconds))
    print(f"closed, {clients} clients, one at a time: {unbatched.line()}", flush=True)
    batched = asyncio.run(closed(batching, texts, clients, seconds))
    print(f"closed, {clients} clients, batching:      {batched.line()}", flush=True)
    loads: dict[str, Tally] = {}
    for times in TIMES:
        name = f"open, {times:g} times capacity"
        loads[name] = asyncio.run(open_loop(batching, texts, times * batched.goodput, seconds))
        print(f"{name}: {loads[name].line()}", flush=True)
    if options.crowd:
        name = f"closed, {options.crowd} clients that retry at once"
        loads[name] = asyncio.run(closed(batching, texts, options.crowd, seconds))
        print(f"{name}: {loads[name].line()}", flush=True)
    tallies = [batched, *loads.values()]
    best = max(tally.goodput for tally in tallies), max(tally.per_cpu_second for tally in tallies)
    return Round(
        (batched.goodput / unbatched.goodput, batched.per_cpu_second / unbatched.per_cpu_second),
        {name: (tally.goodput / best[0], tally.per_cpu_second / best[1]) for name, tally in loads.items()},
        {name: tally.refused for name, tally in loads.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, help="a file with one text per line")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--crowd", type=int, default=1280, help="clients of the crowd; 0: none")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts = options.texts.read_text(encoding="utf-8").splitlines()[:1000] if options.texts else TEXTS
    with Server(options.model) as batching, Server(options.model, "serve.batching=false") as single:
        rounds = [measure(batching, single, texts, options) for _ in range(options.rounds)]
    for index, unit in enumerate(("per second", "per CPU second of the server")):
        print(f"translations {unit}:")
        print(
            f"  batching against single requests: {spread([result.batching[index] for result in rounds], '.2f')} times"
        )
        for name in rounds[0].shares:
            print(f"  {name}: {spread([result.shares[name][index] for result in rounds], '.0%')} of the best")
    for name in rounds[0].refusals:
        refusals = [took for result in rounds for took in result.refusals[name]]
        shown = ", ".join(f"p{part} {1e3 * percentile(refusals, part):.0f} ms" for part in (50, 95, 99))
        print(f"{name}: {len(refusals)} refusals, {shown}")


if __name__ == "__main__":
    main()
