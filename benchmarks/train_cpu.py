"""Training a small Transformer on a CPU: heed beside what a person would use instead, on the same sentences.

    python benchmarks/train_cpu.py [--rounds 3] [--seconds 20] [--only heed marian]

3+3 layers of width 256, 4 heads, 1,024, 8,000 words, dropout 0.1 on embeddings and sub-layers (what Hugging Face and
fairseq do by default: none on attention weights and activations), label smoothing, Adam, float32; batches of 2,048
target tokens of realistic lengths. What is counted is real target tokens, data and optimiser included. heed goes
through the code that `heed train` runs; the others get batches sorted by length, and run twice, as they come and tuned:
with a malloc that keeps its memory and threads that spin while they wait. Each runs in a process of its own, and all
take turns. The limit is a product of large float32 matrices, measured in between.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

WORDS, WIDTH, HEADS, LAYERS, INNER = 8000, 256, 4, 3, 1024
TOKENS = 2048
PRODUCTS = 6 * (
    LAYERS * (4 * WIDTH**2 + 2 * WIDTH * INNER) + LAYERS * (8 * WIDTH**2 + 2 * WIDTH * INNER) + WIDTH * WORDS
)
TUNED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "OMP_WAIT_POLICY": "ACTIVE",
    "GOMP_SPINCOUNT": "1000000",
}

Step = Callable[[], int]  # takes a step, returns its target tokens


def heed_step(pairs: list[tuple[int, int]]) -> Step:
    """The steps of `heed train`."""
    import tempfile  # noqa: PLC0415 - each process imports what its own system needs

    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from heed import ModelConfig, RunConfig, TrainingConfig, Transformer  # noqa: PLC0415
    from heed.text.prepare import Kept, Prepared, Side  # noqa: PLC0415
    from heed.training.batches import Batches  # noqa: PLC0415
    from heed.training.run import Run, make_optimizer  # noqa: PLC0415
    from heed.training.step import share, take_step  # noqa: PLC0415

    draw = np.random.default_rng(0)
    sides = []
    for side in (0, 1):
        ends = np.cumsum([pair[side] - 1 for pair in pairs])
        sides.append(Side(draw.integers(4, WORDS, ends[-1]).astype(np.uint16), ends))
    prepared = Prepared(Path(), *sides, (Kept("", 1.0, len(pairs), 0, 0, 256),))
    model_config = ModelConfig(
        vocab_size=WORDS, d_model=WIDTH, heads=HEADS, encoder_layers=LAYERS, decoder_layers=LAYERS, d_ff=INNER,
        attention_dropout=0.0, activation_dropout=0.0,
    )  # fmt: skip
    config = RunConfig(model=model_config, training=TrainingConfig(tokens_per_batch=TOKENS))
    model = Transformer(model_config)
    batches = Batches(prepared, TOKENS, 1)
    folder = Path(tempfile.mkdtemp())
    run = Run(folder, config, model, make_optimizer(model, config), batches, lambda *_: {}, None, torch.device("cpu"))
    learner = run.learner()
    numbers = iter(enumerate((numbers for epoch in range(10**6) for numbers in batches.epoch(epoch)), 1))

    def step() -> int:
        number, chosen = next(numbers)
        return take_step(run, learner, share(run, learner, [chosen], 0), number).tokens

    return step


def padded(pairs: list[tuple[int, int]]) -> Iterator[tuple[object, object, int]]:
    """Batches of like lengths in rows, at most TOKENS on either side; and real target tokens. For ever."""
    import torch  # noqa: PLC0415

    batches, rows, longest = [], [], 0
    for pair in sorted(pairs, key=lambda pair: (pair[1], pair[0])):
        if rows and (len(rows) + 1) * max(longest, *pair) > TOKENS:
            batches.append(rows)
            rows, longest = [], 0
        rows.append(pair)
        longest = max(longest, *pair)
    random.Random(1).shuffle(batches)
    draw = torch.Generator().manual_seed(0)
    while True:
        for batch in batches:
            sides = []
            for side in (0, 1):
                width = max(pair[side] for pair in batch) + side
                ids = torch.randint(4, WORDS, (len(batch), width), generator=draw)
                real = torch.arange(width) < torch.tensor([pair[side] + side for pair in batch])[:, None]
                sides.append(ids * real)
            yield (*sides, sum(pair[1] for pair in batch))


def marian() -> object:
    """Hugging Face's MarianMT, as a function of source and target ids to logits."""
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415

    config = MarianConfig(
        vocab_size=WORDS, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER, max_position_embeddings=256, dropout=0.1, attention_dropout=0.0,
        activation_dropout=0.0, activation_function="relu", scale_embedding=True, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None, use_cache=False,
    )  # fmt: skip
    return MarianMTModel(config)


def torch_transformer() -> object:
    """torch.nn.Transformer with what it leaves out: words, places, logits."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
            places = torch.arange(256)[:, None] * 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
            self.register_buffer("places", torch.stack((places.sin(), places.cos()), -1).flatten(-2))
            self.stacks = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, INNER, 0.1, batch_first=True)

        def forward(self, src, tgt_in):  # type: ignore[no-untyped-def]
            x, y = (self.words(ids) * WIDTH**0.5 + self.places[: ids.shape[1]] for ids in (src, tgt_in))
            later = torch.ones(tgt_in.shape[1], tgt_in.shape[1], dtype=torch.bool).triu(1)
            hidden = self.stacks(
                x, y, tgt_mask=later, src_key_padding_mask=src == 0, tgt_key_padding_mask=tgt_in == 0,
                memory_key_padding_mask=src == 0,
            )  # fmt: skip
            return nn.functional.linear(hidden, self.words.weight)

    return Whole()


def peer_step(name: str, pairs: list[tuple[int, int]]) -> Step:
    """The step of a training script that somebody would write around a peer's model."""
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    model = {"marian": marian, "torch": torch_transformer}[name]().train()  # type: ignore[attr-defined]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    batches = padded(pairs)

    def step() -> int:
        src, tgt, tokens = next(batches)
        if name == "marian":
            masks = {"attention_mask": (src != 0).long(), "decoder_attention_mask": (tgt[:, :-1] != 0).long()}
            logits = model(input_ids=src, decoder_input_ids=tgt[:, :-1], **masks).logits
        else:
            logits = model(src, tgt[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return tokens

    return step


def limit() -> float:
    """Operations a second of a product of large float32 matrices."""
    import torch  # noqa: PLC0415

    one, other = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best = 0.0
    for _ in range(12):
        began = time.perf_counter()
        one @ other
        best = max(best, 2 * 2048**3 / (time.perf_counter() - began))
    return best


def work(name: str) -> None:
    """What a process does: for each line it reads it takes steps for so many seconds, and says how fast they were."""
    import torch  # noqa: PLC0415

    torch.manual_seed(0)
    if name != "limit":
        from train_gpu import lengths  # noqa: PLC0415 - beside this script; sentences of the same lengths

        pairs = lengths(20_000)
        step = heed_step(pairs) if name == "heed" else peer_step(name, pairs)
        for _ in range(4):
            step()
    print("ready", flush=True)
    for line in sys.stdin:
        if name == "limit":
            print(limit() / PRODUCTS, flush=True)
            continue
        began, tokens = time.perf_counter(), 0
        while time.perf_counter() - began < float(line):
            tokens += step()
        print(tokens / (time.perf_counter() - began), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the systems to measure")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.work)
        return
    systems = {"heed": ("heed", {}), "limit": ("limit", {})}
    for peer in ("marian", "torch"):
        systems |= {peer: (peer, {}), f"{peer}, tuned": (peer, TUNED)}
    running = {}
    for name, (what, settings) in systems.items():
        if name == "limit" or any(part in name for part in asked.only):
            command = [sys.executable, __file__, "--work", what]
            running[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings}
            )
            assert running[name].stdout.readline() == "ready\n", name  # type: ignore[union-attr]
    found: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(asked.rounds):
        for name, process in running.items():
            process.stdin.write(f"{asked.seconds}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            found[name].append(float(process.stdout.readline()))  # type: ignore[union-attr]
    for process in running.values():
        process.stdin.close()  # type: ignore[union-attr]
        process.wait()
    middle = {name: statistics.median(speeds) for name, speeds in found.items()}
    fastest = max((speed for name, speed in middle.items() if name not in ("heed", "limit")), default=math.nan)
    for name, speed in middle.items():
        told = {"system": name, "target tokens a second": round(speed)}
        told |= {"lowest and highest": [round(bound(found[name])) for bound in (min, max)]}
        told |= {
            "times the fastest peer": round(speed / fastest, 2),
            "share of the limit": round(speed / middle["limit"], 2),
        }
        print(json.dumps(told))


if __name__ == "__main__":
    main()
