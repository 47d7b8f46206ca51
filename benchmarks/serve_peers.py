"""Requests per second of `heed serve` beside fifteen lines of FastAPI around CTranslate2, with the same weights.

    python benchmarks/serve_peers.py MODEL [--texts FILE] [--clients 1 8 32 128] [--seconds 8] [--rounds 3] [--int8]

Closed loop: each client sends its next request when it has the reply to the last. Both servers translate with the
model's beam; they are measured in turn, one at a time, on the machine that the clients share. CTranslate2 runs two
translations at the same time, one thread each: on two cores its best setting for a server. Prints a Markdown table of
the best round: other load only slows a server down.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serve_load import TEXTS, Server, Tally, closed, percentile  # beside this script


def serve_ctranslate2(folder: Path, model: Path, port: int, compute_type: str) -> None:
    """The peer: a web service as its user would write it."""
    import ctranslate2  # noqa: PLC0415 - only this process needs these
    import uvicorn  # noqa: PLC0415
    from fastapi import Body, FastAPI  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    app, tokenizer = FastAPI(), Tokenizer.from_file(str(model / "tokenizer.json"))
    beam = json.loads((model / "config.json").read_text())["search"]["beam"]
    names = json.loads((folder / "shared_vocabulary.json").read_text())
    ids = {name: number for number, name in enumerate(names)}
    translator = ctranslate2.Translator(str(folder), compute_type=compute_type, inter_threads=2, intra_threads=1)

    @app.post("/translate")
    def translate(q: str = Body(), source: str = Body(), target: str = Body()) -> dict[str, str]:  # noqa: ARG001
        tokens = [names[number] for number in tokenizer.encode(q, add_special_tokens=False).ids]
        (result,) = translator.translate_batch([tokens], beam_size=beam)
        return {"translatedText": tokenizer.decode([ids[name] for name in result.hypotheses[0]])}

    uvicorn.run(app, port=port, log_level="error", access_log=False)


class Peer:
    """The peer's server in a process of its own."""

    def __init__(self, folder: Path, model: Path, compute_type: str, languages: tuple[str, str]) -> None:
        self.source, self.target = languages
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        arguments = ["--work", str(folder), str(self.port), compute_type]
        self._process = subprocess.Popen([sys.executable, __file__, str(model), *arguments])
        while self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise SystemExit("the peer's server has ended")

    def processor(self) -> float:
        return float("nan")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@contextmanager
def peer(model: Path, compute_type: str, languages: tuple[str, str]) -> Iterator[Peer]:
    """The model exported for CTranslate2, and served."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path) / "exported"
        command = ["-m", "heed", "export", str(model), "--to", "ctranslate2", "--out", str(folder)]
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server = Peer(folder, model, compute_type, languages)
        try:
            yield server
        finally:
            server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, help="a file with one text per line")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--int8", action="store_true", help="both servers in int8")
    parser.add_argument("--work", nargs=3, help="internal: the peer's process")
    options = parser.parse_args()
    if options.work:
        serve_ctranslate2(Path(options.work[0]), options.model, int(options.work[1]), options.work[2])
        return
    texts = options.texts.read_text(encoding="utf-8").splitlines()[:1000] if options.texts else TEXTS
    results: dict[tuple[str, int], list[Tally]] = {}
    with tempfile.TemporaryDirectory() as path:
        model = options.model
        if options.int8:
            model = Path(path) / "int8"
            quantize = [sys.executable, "-m", "heed", "quantize", str(options.model), "--out", str(model)]
            subprocess.run(quantize, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with (
            Server(model, "search.stop=first") as heed,
            peer(options.model, "int8" if options.int8 else "float32", (heed.source, heed.target)) as other,
        ):
            servers: dict[str, Any] = {"heed": heed, "FastAPI and CTranslate2": other}
            for _ in range(options.rounds):
                for clients in options.clients:
                    for name, server in servers.items():
                        tally = asyncio.run(closed(server, texts, clients, options.seconds))
                        results.setdefault((name, clients), []).append(tally)
                        print(f"{name}, {clients} clients: {tally.line()}", flush=True)
    print("| clients | server | requests/s | p50, ms | p99, ms |\n|---|---|---|---|---|")
    for (name, clients), tallies in results.items():
        best = max(tallies, key=lambda tally: tally.goodput)
        latencies = " | ".join(f"{1e3 * percentile(best.good, part):.1f}" for part in (50, 99))
        print(f"| {clients} | {name} | {best.goodput:.0f} | {latencies} |")


if __name__ == "__main__":
    main()
