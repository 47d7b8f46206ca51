"""How speed and memory grow with the length of sentences and with the size of batches: heed beside its peers.

    python benchmarks/growth.py [--device cuda] [--rounds 5] [--only translate train] [--tokens 2048] [--compile]

Translating: heed beside Hugging Face's `generate` with the same weights, greedily, as many tokens written as read;
lengths at a batch of 8 (on a GPU 64), batches at 32 tokens. Training: the steps of `heed train` beside
torch.nn.Transformer with batches sorted by length, by the target tokens in a batch; each size of each in a process of
its own, which says how fast it was and how much memory it took beyond what its imports take. They take turns, and the
best counts: whatever else a machine does only slows. On a CPU the model has 3+3 layers of width 256 and 8,000 words, in
float32; on a GPU it is the paper's base model with 32,000, in bfloat16, neither compiled unless asked for. Prints JSON
lines as docs/pictures/performance.py draws them.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

import torch
from peers import Ids, TorchTransformer, Translate, generate, padded, peer_step  # beside this script
from worker import Worker

from heed import ModelConfig, RunConfig, SearchConfig, TrainingConfig, Transformer
from heed.backends.machine import device_name
from heed.backends.select import InferenceRequest, inference_backend
from heed.benchmarking.limits import now, peak_memory
from heed.benchmarking.training import TrainStep, pair_lengths, random_pairs, training_steps
from heed.benchmarking.translating import random_sources
from heed.decoding.engine import Engine

LENGTHS, LENGTH = (8, 16, 32, 64, 128), 32
BATCHES = {"cpu": (1, 2, 4, 8, 16, 32), "cuda": (1, 4, 16, 64, 256)}
BATCH = {"cpu": 8, "cuda": 64}
TOKENS = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 8192, 25_000, 50_000)}
TURNS, SECONDS = 4, 1.0  # that steps are timed in, and how long each takes at least
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
PEERS = {"translate": "Hugging Face", "train": "torch.nn.Transformer"}


def model_config(device: torch.device) -> ModelConfig:
    if device.type == "cuda":
        return ModelConfig(vocab_size=32_000)
    return ModelConfig(vocab_size=8000, d_model=256, heads=4, encoder_layers=3, decoder_layers=3, d_ff=1024)


MODELS = {"cpu": "3+3 layers of width 256, 8,000 words, float32", "cuda": "the base model, 32,000 words, bfloat16"}
PLOTS = {  # what each shows, by what, in what
    "translate-by-length": ("Translating, by length", "tokens a sentence", "tokens a second"),
    "translate-by-batch": ("Translating, by sentences at once", "sentences at once", "tokens a second"),
    "train-by-batch": ("Training, by size of batch", "target tokens a batch", "target tokens a second"),
    "train-memory": ("Memory of training", "target tokens a batch", "MiB at most"),
}


def describe(device: torch.device, kind: str) -> None:
    """A line for each plot: what it is, where and when."""
    here = {"hardware": device_name(device), "date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__}
    for plot, (title, x_label, unit) in PLOTS.items():
        if plot.startswith(kind):
            told = {"plot": f"{plot}-{device.type}", "title": title, "x": x_label, "unit": unit, **here}
            told["note"] = MODELS[device.type]
            print(json.dumps(told), flush=True)


def say(plot: str, device: torch.device, system: str, x: int, value: float) -> None:
    print(json.dumps({"plot": f"{plot}-{device.type}", "system": system, "x": x, "value": value}), flush=True)


# Translating ----------------------------------------------------------------------------------------------------------


def heed_translate(model: Transformer, device: torch.device) -> Translate:
    """As `heed.load` would have it: on a GPU captured, if it can be."""
    precision = "bfloat16" if device.type == "cuda" else "auto"
    engine = Engine(inference_backend([model], InferenceRequest(precision=precision)))

    def translate(sources: Ids, beam: int, length: int) -> Ids:
        config = SearchConfig(beam=beam, min_length=length - 1, max_length=length - 1)
        return [list(best.ids) for best, *_ in engine.search(sources, config, range(len(sources)))]

    return translate


def seconds(translate: Translate, sources: Ids, length: int) -> float:
    began = time.perf_counter()
    translate(sources, 1, length)
    return time.perf_counter() - began


def translating(device: torch.device, rounds: int) -> None:
    torch.manual_seed(0)
    config = model_config(device)
    model = Transformer(config).to(device).eval()
    systems = {"heed": heed_translate(model, device), PEERS["translate"]: generate(model, device, DTYPES[device.type])}
    points = [("translate-by-length", length, BATCH[device.type], length) for length in LENGTHS]
    points += [("translate-by-batch", batch, batch, LENGTH) for batch in BATCHES[device.type]]
    jobs = [
        (plot, x, length, random_sources(batch, length - 1, config.vocab_size)) for plot, x, batch, length in points
    ]
    times: dict[tuple[str, int, str], list[float]] = {}
    for _ in range(rounds + 1):  # rounds apart, so that a disturbance does not fall on all of a point's
        for plot, x, length, sources in jobs:
            for name, translate in systems.items():
                times.setdefault((plot, x, name), []).append(
                    seconds(translate, sources, length) / len(sources) / length
                )
    for (plot, x, name), (_, *measured) in times.items():  # the first has warmed up
        say(plot, device, name, x, round(1 / min(measured), 1))


# Training -------------------------------------------------------------------------------------------------------------


def work(system: str, tokens: int, device: torch.device, *, compiled: bool) -> None:
    """In a process of its own: a turn for each line, and at the end how much memory beyond what was there before."""
    torch.manual_seed(0)
    config, pairs = model_config(device), pair_lengths(max(1000, 2 * tokens))
    before = 0 if device.type == "cuda" else peak_memory(device) or 0
    if system == "heed":
        settings = TrainingConfig(tokens_per_batch=tokens, compile=compiled)
        run = RunConfig(model=config, training=settings)
        step = training_steps(run, random_pairs(pairs, config), device)
    else:
        batches = padded(pairs, config, tokens, 8 if device.type == "cuda" else 1, device)
        step = peer_step(TorchTransformer(config), batches, device, compiled=compiled)
    for _ in range(12 if device.type == "cuda" else 2):
        step()
    print(json.dumps("ready"), flush=True)
    for _ in range(TURNS):
        sys.stdin.readline()
        print(turn(step, device), flush=True)
    print((peak_memory(device) or 0) - before, flush=True)


def turn(step: TrainStep, device: torch.device) -> float:
    """Target tokens a second, of some steps."""
    began, learnt = now(device), 0
    while time.perf_counter() - began < SECONDS:
        learnt += step()
    return learnt / (now(device) - began)


def training(device: torch.device, sizes: Sequence[int], *, compiled: bool) -> None:
    for tokens in sizes:
        with ExitStack() as ending:
            workers = {
                name: ready_worker(ending, name, tokens, device, compiled=compiled) for name in ("heed", PEERS["train"])
            }
            speeds = [{name: worker.ask() for name, worker in workers.items()} for _ in range(TURNS)]
            for name, worker in workers.items():
                say("train-by-batch", device, name, tokens, round(max(one[name] for one in speeds), 1))
                say("train-memory", device, name, tokens, round(worker.answer() / 2**20))


def ready_worker(ending: ExitStack, system: str, tokens: int, device: torch.device, *, compiled: bool) -> Worker:
    """A process in which one system learns when asked to; they warm up one after another, undisturbed."""
    arguments = [system, str(tokens), "--device", device.type, *["--compile"] * compiled]
    found = Worker(ending, __file__, arguments)
    assert found.answer() == "ready", system
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--tokens", type=int, nargs="*", help="target tokens a batch, to train with")
    parser.add_argument("--compile", action="store_true", help="compile what is trained")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: there is no GPU")
    if asked.work:
        work(asked.work[0], int(asked.work[1]), device, compiled=asked.compile)
        return
    for kind in asked.only:
        describe(device, kind)
        if kind == "translate":
            translating(device, asked.rounds)
        else:
            training(device, asked.tokens or TOKENS[device.type], compiled=asked.compile)


if __name__ == "__main__":
    main()
