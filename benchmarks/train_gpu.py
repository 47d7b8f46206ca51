"""Training the paper's base model on one GPU: heed beside what a person would use instead, on the same sentences.

    python benchmarks/train_gpu.py [--rounds 3] [--only heed torch]

6+6 layers of width 512, 8 heads, 2,048, 32,000 words, dropout 0.1 everywhere, label smoothing, Adam, bfloat16; batches
of 25,000 target tokens of realistic lengths (about 30 a sentence). What is counted is real target tokens, everything
included: data and optimiser. heed goes through the code that `heed train` runs, on batches that it has not seen.

The others get batches sorted by length and filled up to a multiple of eight, ready on the GPU, and torch.compile; and
the same few batches over and over, since cuDNN's attention, which torch chooses for them, takes half a second to plan
for every shape that it meets for the first time. `--fresh` gives them batches that they have not seen either, as a
person's own script would. MarianMT goes without cuDNN, and is quicker so.

Each has a process of its own, since what one compiles can disturb another. They are warmed up one after another, then
measured in turns: read ratios. The limit is a product of large bfloat16 matrices.
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

GPU = torch.device("cuda")
MODEL = ModelConfig(vocab_size=32_000)
TOKENS, PAIRS = 25_000, 80_000
BATCHES = 24  # that the others learn from over and over, and as many steps are measured at a time


# In a process of its own ----------------------------------------------------------------------------------------------


def heed_step(pairs: list[PairLengths], _fresh: bool) -> TrainStep:
    """The steps of `heed train`."""
    config = RunConfig(model=MODEL, training=TrainingConfig(tokens_per_batch=TOKENS))
    return training_steps(config, random_pairs(pairs, MODEL), GPU)


def torch_step(pairs: list[PairLengths], fresh: bool) -> TrainStep:
    """A person's script around torch.nn.Transformer."""
    return compiled(TorchTransformer, pairs, fresh)


def marian_step(pairs: list[PairLengths], fresh: bool) -> TrainStep:
    """A person's script around MarianMT: at its best without cuDNN's attention, fresh as it comes."""
    torch.backends.cuda.enable_cudnn_sdp(fresh)
    return compiled(Marian, pairs, fresh)


def compiled(make: Callable[[ModelConfig], torch.nn.Module], pairs: list[PairLengths], fresh: bool) -> TrainStep:
    """Such a script, the model compiled for batches of any shape."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    batches = padded(pairs, MODEL, TOKENS, 8, GPU)
    return peer_step(make(MODEL), batches if fresh else cycle(list(islice(batches, BATCHES))), GPU, compiled=True)


SYSTEMS: dict[str, Callable[[list[PairLengths], bool], TrainStep]] = {
    "heed": heed_step,
    "torch.nn.Transformer, compiled": torch_step,
    "Hugging Face MarianMT, compiled": marian_step,
}


def measure(step: TrainStep, steps: int) -> float:
    """Real target tokens a second."""
    torch.cuda.synchronize()
    began = time.monotonic()
    tokens = sum(step() for _ in range(steps))
    torch.cuda.synchronize()
    return tokens / (time.monotonic() - began)


def work(name: str, fresh: bool) -> None:
    """Warm up, say how long that took and the most memory; then, as long as asked: steps in, tokens a second out."""
    began, step = time.monotonic(), SYSTEMS[name](pair_lengths(PAIRS), fresh)
    for _ in range(BATCHES if fresh else 2 * BATCHES):
        step()
    torch.cuda.synchronize()
    print(json.dumps([time.monotonic() - began, torch.cuda.max_memory_allocated()]), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(step, int(line))), flush=True)


# In the first process -------------------------------------------------------------------------------------------------


def report(found: dict[str, list[float]], limit: float) -> None:
    """The middle of all rounds."""
    middle = {name: statistics.median(speeds) for name, speeds in found.items()}
    fastest_peer = max((speed for name, speed in middle.items() if name != "heed"), default=math.nan)
    sources, targets = (sum(pair[side] for pair in pair_lengths(PAIRS)) for side in (0, 1))
    operations = training_flops(MODEL, sources / targets, 1)  # for each target token
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}: {limit / 1e12:.0f} TFLOP a second at most")
    for name, speed in middle.items():
        line = {
            "system": name,
            "target tokens a second": round(speed),
            "lowest and highest": [round(bound(found[name])) for bound in (min, max)],
            "TFLOP a second": round(speed * operations / 1e12, 1),
            "share of the limit": round(speed * operations / limit, 2),
            "times the fastest peer": round(speed / fastest_peer, 2),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the systems to measure")
    parser.add_argument("--fresh", action="store_true", help="give all of them batches they have not seen")
    parser.add_argument("--work", choices=list(SYSTEMS), help="used by itself: a system's process")
    asked = parser.parse_args()
    if asked.work:
        work(asked.work, asked.fresh)
        return
    found: dict[str, list[float]] = {}
    with ExitStack() as ending:
        workers = {}
        for name in SYSTEMS:
            if any(part in name for part in asked.only):
                workers[name] = Worker(ending, __file__, [name, *["--fresh"] * asked.fresh])
                took, memory = workers[name].answer()
                alone = workers[name].ask(BATCHES)  # in case that there is no time for the others
                print(f"{name}: warm after {took:.0f} s, {memory / 2**30:.1f} GiB at most; {alone:,.0f}", flush=True)
        for _ in range(asked.rounds):
            for name, worker in workers.items():
                found.setdefault(name, []).append(worker.ask(BATCHES))
                print(f"{name}: {found[name][-1]:,.0f}", flush=True)
    report(found, matmul_throughput("bfloat16", GPU))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and there is none")
    main()
