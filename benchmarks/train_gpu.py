"""Training the paper's base model on one GPU: heed beside torch.nn.Transformer and MarianMT, on the same sentences.

    python benchmarks/train_gpu.py [--rounds 3] [--only heed torch] [--model big]

6+6 layers, d_model 512, 8 heads, d_ff 2,048 (or the paper's big model), vocabulary 32,000, dropout, label smoothing,
Adam, bfloat16; batches of 25,000 target tokens with realistic lengths (about 30 per sentence). Speed is target tokens/s
without padding, data loading and optimiser included. heed runs the code of `heed train`, on batches it has not seen
before.

The others get batches sorted by length and padded to a multiple of eight, already on the GPU, and torch.compile. They
repeat the same few batches, since cuDNN attention, which torch chooses for them, takes half a second to plan for every
new shape; `--fresh` gives them new batches, as an ordinary training script would. MarianMT runs without cuDNN
attention, which makes it faster.

Each system runs in a process of its own, since compiled code of one can disturb another. They warm up one after another
and are then measured in turn: compare ratios. The limit is the matmul throughput in bfloat16.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, islice

import torch
from peers import Marian, TorchTransformer, padded, peer_step  # beside this script
from worker import Worker

from heed import ModelConfig, RunConfig, TrainingConfig
from heed.benchmarking.limits import matmul_throughput, training_flops
from heed.benchmarking.training import PairLengths, TrainStep, pair_lengths, random_pairs, training_steps
from heed.model_presets import model_preset

GPU = torch.device("cuda")
MODELS = {name: ModelConfig(vocab_size=32_000, **model_preset(name)) for name in ("base", "big")}
TOKENS, PAIRS = 25_000, 80_000
BATCHES = 24  # that the others repeat; also the steps per measurement


# Worker process ---------------------------------------------------------------------------------------------------


def heed_step(model: ModelConfig, pairs: list[PairLengths], _fresh: bool) -> TrainStep:
    """The steps of `heed train`."""
    config = RunConfig(model=model, training=TrainingConfig(tokens_per_batch=TOKENS))
    return training_steps(config, random_pairs(pairs, model), GPU)


def torch_step(model: ModelConfig, pairs: list[PairLengths], fresh: bool) -> TrainStep:
    """An ordinary training script with torch.nn.Transformer."""
    return compiled(TorchTransformer, model, pairs, fresh)


def marian_step(model: ModelConfig, pairs: list[PairLengths], fresh: bool) -> TrainStep:
    """An ordinary training script with MarianMT; without cuDNN attention, unless batches are fresh."""
    torch.backends.cuda.enable_cudnn_sdp(fresh)
    return compiled(Marian, model, pairs, fresh)


def compiled(
    make: Callable[[ModelConfig], torch.nn.Module], model: ModelConfig, pairs: list[PairLengths], fresh: bool
) -> TrainStep:
    """A training script whose model is compiled with dynamic shapes."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    batches = padded(pairs, model, TOKENS, 8, GPU)
    return peer_step(make(model), batches if fresh else cycle(list(islice(batches, BATCHES))), GPU, compiled=True)


SYSTEMS: dict[str, Callable[[ModelConfig, list[PairLengths], bool], TrainStep]] = {
    "heed": heed_step,
    "torch.nn.Transformer, compiled": torch_step,
    "Hugging Face MarianMT, compiled": marian_step,
}


def measure(step: TrainStep, steps: int) -> float:
    """Target tokens/s, without padding."""
    torch.cuda.synchronize()
    began = time.monotonic()
    tokens = sum(step() for _ in range(steps))
    torch.cuda.synchronize()
    return tokens / (time.monotonic() - began)


def work(name: str, model: ModelConfig, fresh: bool) -> None:
    """Warm up and print its seconds and peak memory; then, for each number of steps on stdin, print tokens/s."""
    began, step = time.monotonic(), SYSTEMS[name](model, pair_lengths(PAIRS), fresh)
    for _ in range(BATCHES if fresh else 2 * BATCHES):
        step()
    torch.cuda.synchronize()
    print(json.dumps([time.monotonic() - began, torch.cuda.max_memory_allocated()]), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(step, int(line))), flush=True)


# Main process ---------------------------------------------------------------------------------------------------------


def report(speeds: dict[str, list[float]], model: ModelConfig, limit: float) -> None:
    """Print the median speed of each system."""
    median = {name: statistics.median(rounds) for name, rounds in speeds.items()}
    fastest_peer = max((speed for name, speed in median.items() if name != "heed"), default=math.nan)
    sources, targets = (sum(pair[side] for pair in pair_lengths(PAIRS)) for side in (0, 1))
    operations = training_flops(model, sources / targets, 1)  # per target token
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}: {limit / 1e12:.0f} TFLOP/s at most")
    for name, speed in median.items():
        line = {
            "system": name,
            "target tokens/s": round(speed),
            "min and max": [round(bound(speeds[name])) for bound in (min, max)],
            "TFLOP/s": round(speed * operations / 1e12, 1),
            "share of the limit": round(speed * operations / limit, 2),
            "speedup over the fastest peer": round(speed / fastest_peer, 2),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the systems to measure")
    parser.add_argument("--model", choices=list(MODELS), default="base")
    parser.add_argument("--fresh", action="store_true", help="give every system new batches")
    parser.add_argument("--work", choices=list(SYSTEMS), help="internal: a system's worker process")
    options = parser.parse_args()
    if options.work:
        work(options.work, MODELS[options.model], options.fresh)
        return
    speeds: dict[str, list[float]] = {}
    with ExitStack() as stack:
        workers = {}
        for name in SYSTEMS:
            if any(part in name for part in options.only):
                workers[name] = Worker(stack, __file__, [name, "--model", options.model, *["--fresh"] * options.fresh])
                took, memory = workers[name].reply()
                alone = workers[name].request(BATCHES)  # in case there is no time left for the others
                print(f"{name}: warm after {took:.0f} s, {memory / 2**30:.1f} GiB at most; {alone:,.0f}", flush=True)
        for _ in range(options.rounds):
            for name, worker in workers.items():
                speeds.setdefault(name, []).append(worker.request(BATCHES))
                print(f"{name}: {speeds[name][-1]:,.0f}", flush=True)
    report(speeds, MODELS[options.model], matmul_throughput("bfloat16", GPU))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU, and torch finds none")
    main()
