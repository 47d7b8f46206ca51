"""Training a small Transformer on a CPU: heed beside MarianMT and torch.nn.Transformer, on the same sentences.

    python benchmarks/train_cpu.py [--rounds 3] [--seconds 20] [--only heed marian]

3+3 layers, d_model 256, 4 heads, d_ff 1,024, vocabulary 8,000, dropout 0.1 on embeddings and sub-layers (the default of
Hugging Face and fairseq: none on attention weights and activations), label smoothing, Adam, float32; batches of 2,048
target tokens with realistic lengths. Speed is target tokens/s without padding, data loading and optimiser included.
heed runs the code of `heed train`; the others get batches sorted by length, and run twice, with default settings and
tuned: a malloc that keeps freed memory, and threads that spin while they wait. Each runs in a process of its own, and
all take turns. The limit is the matmul throughput in float32, measured in the same rounds.
"""

import argparse
import json
import math
import statistics
import sys
import time
from contextlib import ExitStack

from worker import Worker  # beside this script

TUNED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "OMP_WAIT_POLICY": "ACTIVE",
    "GOMP_SPINCOUNT": "1000000",
}
TOKENS = 2048


def work(name: str) -> None:
    """The worker process: for each line, a number of seconds, trains for that long and prints target tokens/s."""
    import torch  # noqa: PLC0415 - the main process needs no torch
    from peers import Marian, TorchTransformer, padded, peer_step  # noqa: PLC0415 - beside this script

    from heed import ModelConfig, RunConfig, TrainingConfig  # noqa: PLC0415
    from heed.benchmarking.limits import matmul_throughput, training_flops  # noqa: PLC0415
    from heed.benchmarking.training import pair_lengths, random_pairs, training_steps  # noqa: PLC0415

    cpu = torch.device("cpu")
    torch.manual_seed(0)
    model = ModelConfig(
        vocab_size=8000, d_model=256, heads=4, encoder_layers=3, decoder_layers=3, d_ff=1024, attention_dropout=0.0,
        activation_dropout=0.0, max_length=256,
    )  # fmt: skip
    pairs = pair_lengths(20_000)
    sources, targets = (sum(pair[side] for pair in pairs) for side in (0, 1))
    if name == "heed":
        config = RunConfig(model=model, training=TrainingConfig(tokens_per_batch=TOKENS))
        step = training_steps(config, random_pairs(pairs, model), cpu)
    elif name != "limit":
        peer = {"marian": Marian, "torch": TorchTransformer}[name](model)
        step = peer_step(peer, padded(pairs, model, TOKENS, 1, cpu), cpu)
    if name != "limit":
        for _ in range(4):
            step()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        if name == "limit":
            print(matmul_throughput("float32", cpu) / training_flops(model, sources / targets, 1), flush=True)
            continue
        began, tokens = time.perf_counter(), 0
        while time.perf_counter() - began < json.loads(line):
            tokens += step()
        print(tokens / (time.perf_counter() - began), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the systems to measure")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    systems = {"heed": ("heed", {}), "limit": ("limit", {})}
    for peer in ("marian", "torch"):
        systems |= {peer: (peer, {}), f"{peer}, tuned": (peer, TUNED)}
    with ExitStack() as stack:
        running = {}
        for name, (system, settings) in systems.items():
            if name == "limit" or any(part in name for part in options.only):
                running[name] = Worker(stack, __file__, [system], settings)
                assert running[name].reply() == "ready", name
        speeds: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(options.rounds):
            for name, worker in running.items():
                speeds[name].append(worker.request(options.seconds))
    median = {name: statistics.median(rounds) for name, rounds in speeds.items()}
    fastest = max((speed for name, speed in median.items() if name not in ("heed", "limit")), default=math.nan)
    for name, speed in median.items():
        line = {
            "system": name,
            "target tokens/s": round(speed),
            "min and max": [round(bound(speeds[name])) for bound in (min, max)],
            "speedup over the fastest peer": round(speed / fastest, 2),
            "share of the limit": round(speed / median["limit"], 2),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
