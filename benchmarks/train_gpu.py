"""Training the paper's base model on one GPU: heed beside what a person would use instead, on the same sentences.

    python benchmarks/train_gpu.py [--rounds 3] [--steps 15] [--only heed torch]

6+6 layers of width 512, 8 heads, 2,048, 32,000 words, dropout 0.1 everywhere, label smoothing, Adam, bfloat16; batches
of 25,000 target tokens of realistic lengths (about 27 a sentence). What is counted is real target tokens, everything
included: data and optimiser. heed goes through the code that `heed train` runs; the others get batches
sorted by length and filled up to a multiple of eight, ready on the GPU, and torch.compile. All are warmed up, then
measured in turns: read ratios.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.text.prepare import Kept, Prepared, Side
from heed.training.ahead import ahead
from heed.training.batches import Batches
from heed.training.run import Run, make_optimizer
from heed.training.step import Taken, share, take_step

GPU = torch.device("cuda")
WORDS, WIDTH, HEADS, LAYERS, INNER = 32_000, 512, 8, 6, 2048
TOKENS = 25_000
# Operations a pair of tokens, forward and back.
PRODUCTS = 6 * (
    LAYERS * (4 * WIDTH**2 + 2 * WIDTH * INNER) + LAYERS * (8 * WIDTH**2 + 2 * WIDTH * INNER) + WIDTH * WORDS
)

Step = Callable[[], int]  # takes a step, returns its target tokens


def lengths(count: int) -> list[tuple[int, int]]:
    """Lengths of sentence pairs, the token that ends them included."""
    draw, found = random.Random(0), []
    while len(found) < count:
        source = round(math.exp(draw.gauss(3.2, 0.55)))
        target = max(2, round(source * math.exp(draw.gauss(0.05, 0.18))))
        if 3 <= source <= 128 and target <= 128:
            found.append((source, target))
    return found


def heed_step(pairs: list[tuple[int, int]]) -> Step:
    """The steps of `heed train`."""
    draw = np.random.default_rng(0)
    sides = []
    for side in (0, 1):
        ends = np.cumsum([pair[side] - 1 for pair in pairs])
        sides.append(Side(draw.integers(4, WORDS, ends[-1]).astype(np.uint16), ends))
    prepared = Prepared(Path(), *sides, (Kept("", 1.0, len(pairs), 0, 0, 256),))
    model_config = ModelConfig(vocab_size=WORDS)
    config = RunConfig(model=model_config, training=TrainingConfig(tokens_per_batch=TOKENS))
    model = Transformer(model_config).to(GPU)
    batches = Batches(prepared, TOKENS, 1, mixed=True)
    folder = Path(tempfile.mkdtemp())
    run = Run(folder, config, model, make_optimizer(model, config), batches, lambda *_: {}, None, GPU)
    learner = run.learner()
    groups = (([numbers], epoch) for epoch in range(10**6) for numbers in batches.epoch(epoch))
    shares = enumerate(ahead(lambda group: share(run, learner, *group), groups), 1)

    under_way: deque[Taken] = deque()

    def step() -> int:
        number, own = next(shares)
        under_way.append(take_step(run, learner, own, number))
        if len(under_way) > 1:  # as the trainer does, which never lets a GPU wait for a loss to be read
            under_way.popleft().loss()
        return under_way[-1].tokens

    return step


def padded(pairs: list[tuple[int, int]]) -> list[tuple[Tensor, Tensor, int]]:
    """Batches of like lengths in rows of a multiple of eight, at most TOKENS on either side; and real target tokens."""
    batches, rows, longest = [], [], 0
    for pair in sorted(pairs, key=lambda pair: (pair[1], pair[0])):
        if rows and (len(rows) + 1) * max(longest, *pair) > TOKENS:
            batches.append(rows)
            rows, longest = [], 0
        rows.append(pair)
        longest = max(longest, *pair)
    random.Random(1).shuffle(batches)
    draw, made = torch.Generator().manual_seed(0), []
    for batch in batches:
        sides = []
        for side in (0, 1):
            width = -(-max(pair[side] for pair in batch) // 8) * 8 + side
            ids = torch.randint(4, WORDS, (len(batch), width), generator=draw)
            real = torch.arange(width) < torch.tensor([pair[side] + side for pair in batch])[:, None]
            sides.append((ids * real).to(GPU))
        made.append((*sides, sum(pair[1] for pair in batch)))
    return made


def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
    """A peer's, compiled with its model."""
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), tgt_out.flatten(), ignore_index=0, label_smoothing=0.1
    )


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with what it leaves out: words, places, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)
        places = torch.arange(256)[:, None] * 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("places", torch.stack((places.sin(), places.cos()), -1).flatten(-2))
        self.stacks = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, INNER, 0.1, batch_first=True)
        self.dropout = nn.Dropout(0.1)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        x, y = (self.dropout(self.words(ids) * WIDTH**0.5 + self.places[: ids.shape[1]]) for ids in (src, tgt_in))
        later = torch.ones(tgt_in.shape[1], tgt_in.shape[1], dtype=torch.bool, device=src.device).triu(1)
        hidden = self.stacks(
            x, y, tgt_mask=later, src_key_padding_mask=src == 0, tgt_key_padding_mask=tgt_in == 0,
            memory_key_padding_mask=src == 0, tgt_is_causal=False,
        )  # fmt: skip
        return loss(functional.linear(hidden, self.words.weight), tgt_out)


class Marian(nn.Module):
    """Hugging Face's MarianMT."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415 - only who compares needs it

        config = MarianConfig(
            vocab_size=WORDS, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
            encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=INNER,
            decoder_ffn_dim=INNER, max_position_embeddings=256, dropout=0.1, attention_dropout=0.1,
            activation_dropout=0.1, activation_function="relu", scale_embedding=True, pad_token_id=0,
            eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None, use_cache=False,
        )  # fmt: skip
        self.model = MarianMTModel(config)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        found = self.model(
            input_ids=src, attention_mask=(src != 0).long(), decoder_input_ids=tgt_in,
            decoder_attention_mask=(tgt_in != 0).long(),
        )  # fmt: skip
        return loss(found.logits, tgt_out)


def peer_step(make: Callable[[], nn.Module], pairs: list[tuple[int, int]]) -> Step:
    """The step of a training script that somebody would write around a peer's model."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = make().to(GPU).train()
    compiled = torch.compile(model, dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def endless() -> Iterator[tuple[Tensor, Tensor, int]]:
        batches = padded(pairs)
        while True:
            yield from batches

    batches = endless()

    def step() -> int:
        src, tgt, tokens = next(batches)
        with torch.autocast("cuda", torch.bfloat16):
            total = compiled(src, tgt[:, :-1], tgt[:, 1:])
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        return tokens

    return step


def measure(step: Step, steps: int) -> float:
    """Real target tokens a second."""
    torch.cuda.synchronize()
    began = time.monotonic()
    tokens = sum(step() for _ in range(steps))
    torch.cuda.synchronize()
    return tokens / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the systems to measure")
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    pairs = lengths(80_000)
    systems: dict[str, Callable[[], Step]] = {
        "heed": lambda: heed_step(pairs),
        "torch.nn.Transformer, compiled": lambda: peer_step(TorchTransformer, pairs),
        "Hugging Face MarianMT, compiled": lambda: peer_step(Marian, pairs),
    }
    ready = {}
    for name, make in systems.items():
        if any(part in name for part in asked.only):
            torch.cuda.reset_peak_memory_stats()
            before, began = torch.cuda.memory_allocated(), time.monotonic()
            ready[name] = make()
            for _ in range(12):
                ready[name]()
            memory = (torch.cuda.max_memory_allocated() - before) / 2**30
            print(f"{name}: warm after {time.monotonic() - began:.0f} s, {memory:.1f} GiB at most", flush=True)
    found = {name: [] for name in ready}
    for _ in range(asked.rounds):
        for name, step in ready.items():
            found[name].append(measure(step, asked.steps))
    middle = {name: statistics.median(speeds) for name, speeds in found.items()}
    fastest_peer = max((speed for name, speed in middle.items() if name != "heed"), default=math.nan)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, speed in middle.items():
        print(
            json.dumps(
                {
                    "system": name,
                    "target tokens a second": round(speed),
                    "lowest and highest": [round(bound(found[name])) for bound in (min, max)],
                    "TFLOP a second": round(speed * PRODUCTS / 1e12, 1),
                    "times the fastest peer": round(speed / fastest_peer, 2),
                }
            )
        )


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and there is none")
    main()
