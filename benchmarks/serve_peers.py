"""Requests per second of `heed serve` beside fifteen lines of FastAPI around CTranslate2, and beside LibreTranslate.

    python benchmarks/serve_peers.py MODEL [--texts FILE] [--clients 1 8 32 128] [--seconds 8] [--rounds 3] [--int8]
                                     [--libretranslate PYTHON]

PYTHON: the interpreter of an environment that has LibreTranslate. Closed loop: each client sends its next request when
it has the reply to the last. All servers have the same weights and the model's beam; heed and the FastAPI service stop
at the first finished hypothesis, LibreTranslate cannot. They are measured in turn, one at a time, on the machine that
the clients share. CTranslate2 runs two translations at the same time, one thread each: on two cores its best setting
for a server. Prints a Markdown table of the best round: other load only slows a server down.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
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
        (result,) = translator.translate_batch([tokens], beam_size=beam, patience=1 / beam)  # stops at the first
        return {"translatedText": tokenizer.decode([ids[name] for name in result.hypotheses[0]])}

    uvicorn.run(app, port=port, log_level="error", access_log=False)


class Peer:
    """A peer's server in a process of its own, started by a command that takes a port and a dtype."""

    def __init__(self, command: list[str], compute_type: str, languages: tuple[str, str]) -> None:
        self.source, self.target = languages
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process = subprocess.Popen([*command, str(self.port), compute_type], stdout=subprocess.DEVNULL)

    def __enter__(self) -> "Peer":
        while self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.1)
        raise SystemExit("the peer's server has ended")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def processor(self) -> float:
        return float("nan")


def export(model: Path, folder: Path) -> None:
    """Export a model for CTranslate2."""
    command = [sys.executable, "-m", "heed", "export", str(model), "--to", "ctranslate2", "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, help="a file with one text per line")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--int8", action="store_true", help="both servers in int8")
    parser.add_argument("--libretranslate", type=Path, metavar="PYTHON", help="measure LibreTranslate, too")
    parser.add_argument("--work", nargs=3, help="internal: the peer's process")
    options = parser.parse_args()
    if options.work:
        serve_ctranslate2(Path(options.work[0]), options.model, int(options.work[1]), options.work[2])
        return
    texts = options.texts.read_text(encoding="utf-8").splitlines()[:1000] if options.texts else TEXTS
    results: dict[tuple[str, int], list[Tally]] = {}
    with tempfile.TemporaryDirectory() as path, ExitStack() as stack:
        model, exported, dtype = options.model, Path(path) / "exported", "int8" if options.int8 else "float32"
        if options.int8:
            model = Path(path) / "int8"
            quantize = [sys.executable, "-m", "heed", "quantize", str(options.model), "--out", str(model)]
            subprocess.run(quantize, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        export(options.model, exported)
        heed = stack.enter_context(Server(model, "search.stop=first"))
        languages = heed.source, heed.target
        fastapi = [sys.executable, __file__, str(options.model), "--work", str(exported)]
        servers: dict[str, Any] = {"heed": heed}
        servers["FastAPI and CTranslate2"] = stack.enter_context(Peer(fastapi, dtype, languages))
        if options.libretranslate:
            script = str(Path(__file__).parent / "serve_libretranslate.py")
            command = [str(options.libretranslate), script, str(options.model), str(exported), "-".join(languages)]
            servers["LibreTranslate"] = stack.enter_context(Peer(command, dtype, languages))
        for server in servers.values():
            asyncio.run(closed(server, texts, 4, 1.0))  # warm-up
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
