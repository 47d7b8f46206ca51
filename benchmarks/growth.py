"""How speed and memory scale with sentence length and batch size: heed beside Hugging Face and torch.nn.Transformer.

    python benchmarks/growth.py [--device cuda] [--rounds 5] [--only translate train] [--tokens 2048] [--compile]

Translation: heed beside Hugging Face's `generate` with the same weights, greedy decoding, targets as long as sources;
by length at batch size 8 (64 on a GPU), by batch size at 32 tokens. Training: the steps of `heed train` beside
torch.nn.Transformer with batches sorted by length, by target tokens per batch; each system and size runs in a process
of its own, which reports its speed and its memory beyond that of the imports. The systems take turns and the best round
counts, since other load only slows a machine. The model on a CPU has 3+3 layers, d_model 256 and a vocabulary of 8,000,
in float32; on a GPU it is the paper's base model with a vocabulary of 32,000, in bfloat16. Neither is compiled without
--compile. Prints lines for docs/pictures/performance.jsonl.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

import torch
from peers import TokenSequences, TorchTransformer, Translate, generate, padded, peer_step  # beside this script
from worker import Worker

from heed import ModelConfig, RunConfig, SearchConfig, TrainingConfig, Transformer
from heed.backends.machine import device_name
from heed.backends.select import inference_backend
from heed.backends.select_native import InferenceRequest
from heed.benchmarking.limits import now, peak_memory
from heed.benchmarking.training import TrainStep, pair_lengths, random_pairs, training_steps
from heed.benchmarking.translating import random_sources
from heed.decoding.engine import Engine

LENGTHS, LENGTH = (8, 16, 32, 64, 128), 32
BATCHES = {"cpu": (1, 2, 4, 8, 16, 32), "cuda": (1, 4, 16, 64, 256)}
BATCH = {"cpu": 8, "cuda": 64}
TOKENS = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 8192, 25_000, 50_000)}
TURNS, SECONDS = 4, 1.0  # rounds of timed steps, and the minimum seconds of each
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
PEERS = {"translate": "Hugging Face", "train": "torch.nn.Transformer"}


def model_config(device: torch.device) -> ModelConfig:
    if device.type == "cuda":
        return ModelConfig(vocab_size=32_000)
    return ModelConfig(vocab_size=8000, d_model=256, heads=4, encoder_layers=3, decoder_layers=3, d_ff=1024)


MODELS = {
    "cpu": "3+3 layers, d_model 256, vocabulary 8,000, float32",
    "cuda": "base model, vocabulary 32,000, bfloat16",
}
PLOTS = {  # title, x axis, unit
    "translate-by-length": ("Translation by sentence length", "tokens per sentence", "tokens/s"),
    "translate-by-batch": ("Translation by batch size", "sentences per batch", "tokens/s"),
    "train-by-batch": ("Training by batch size", "target tokens per batch", "target tokens/s"),
    "train-memory": ("Training memory", "target tokens per batch", "peak MiB"),
}


def describe(device: torch.device, kind: str) -> None:
    """Print the header line of each plot: title, axes, hardware, date."""
    here = {"hardware": device_name(device), "date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__}
    for plot, (title, x_label, unit) in PLOTS.items():
        if plot.startswith(kind):
            header = {"plot": f"{plot}-{device.type}", "title": title, "x": x_label, "unit": unit, **here}
            print(json.dumps({**header, "note": MODELS[device.type]}), flush=True)


def print_point(plot: str, device: torch.device, system: str, x: int, value: float) -> None:
    print(json.dumps({"plot": f"{plot}-{device.type}", "system": system, "x": x, "value": value}), flush=True)


# Translation ----------------------------------------------------------------------------------------------------------


def heed_translate(model: Transformer, device: torch.device) -> Translate:
    """The engine that `heed.load` would choose: on a GPU with CUDA graphs where possible."""
    precision = "bfloat16" if device.type == "cuda" else "auto"
    engine = Engine(inference_backend([model], InferenceRequest(precision=precision)))

    def translate(sources: TokenSequences, beam: int, length: int) -> TokenSequences:
        config = SearchConfig(beam=beam, min_length=length - 1, max_length=length - 1)
        return [list(best.ids) for best, *_ in engine.search(sources, config, range(len(sources)))]

    return translate


def seconds(translate: Translate, sources: TokenSequences, length: int) -> float:
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
    for _ in range(rounds + 1):  # every point once per round, so that other load does not hit one point only
        for plot, x, length, sources in jobs:
            for name, translate in systems.items():
                times.setdefault((plot, x, name), []).append(
                    seconds(translate, sources, length) / len(sources) / length
                )
    for (plot, x, name), (_, *measured) in times.items():  # the first round was the warm-up
        print_point(plot, device, name, x, round(1 / min(measured), 1))


# Training -------------------------------------------------------------------------------------------------------------


def work(system: str, tokens: int, device: torch.device, *, compiled: bool) -> None:
    """The worker process: times steps for each line on stdin, then prints the memory beyond that of the imports."""
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
    """Target tokens/s of about SECONDS of steps."""
    began, tokens = now(device), 0
    while time.perf_counter() - began < SECONDS:
        tokens += step()
    return tokens / (now(device) - began)


def training(device: torch.device, sizes: Sequence[int], *, compiled: bool) -> None:
    for tokens in sizes:
        with ExitStack() as stack:
            workers = {
                name: ready_worker(stack, name, tokens, device, compiled=compiled) for name in ("heed", PEERS["train"])
            }
            speeds = [{name: worker.request() for name, worker in workers.items()} for _ in range(TURNS)]
            for name, worker in workers.items():
                print_point("train-by-batch", device, name, tokens, round(max(speed[name] for speed in speeds), 1))
                print_point("train-memory", device, name, tokens, round(worker.reply() / 2**20))


def ready_worker(stack: ExitStack, system: str, tokens: int, device: torch.device, *, compiled: bool) -> Worker:
    """A warm worker process of one system; workers warm up one after another, undisturbed."""
    arguments = [system, str(tokens), "--device", device.type, *["--compile"] * compiled]
    worker = Worker(stack, __file__, arguments)
    assert worker.reply() == "ready", system
    return worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--tokens", type=int, nargs="*", help="target tokens per batch")
    parser.add_argument("--compile", action="store_true", help="compile the models")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: there is no GPU")
    if options.work:
        work(options.work[0], int(options.work[1]), device, compiled=options.compile)
        return
    for kind in options.only:
        describe(device, kind)
        if kind == "translate":
            translating(device, options.rounds)
        else:
            training(device, options.tokens or TOKENS[device.type], compiled=options.compile)


if __name__ == "__main__":
    main()
