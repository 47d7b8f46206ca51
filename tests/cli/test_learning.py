"""End to end, through the real command: a two-layer model of width 32 learns to reverse strings."""

import random
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

import heed
from tests.cli.command import heed as command

SETTINGS = {
    "data.tokenizer": "characters",
    "data.vocab_size": 300,
    "model.d_model": 32,
    "model.heads": 2,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.d_ff": 128,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.activation_dropout": 0.0,
    "training.max_steps": 600,
    "training.tokens_per_batch": 800,
    "training.schedule": "cosine",
    "training.learning_rate": 0.006,
    "training.warmup_steps": 60,
    "training.label_smoothing": 0.0,
    "training.checkpoint_every": 600,
}


def strings(seed: int, *, unseen: bool) -> Iterator[str]:
    """Random strings of digits; a checksum decides which are test strings (unseen) and which are for training."""
    draw = random.Random(seed)
    while True:
        text = "".join(draw.choices("0123456789", k=draw.randint(3, 6)))
        if (zlib.crc32(text.encode()) % 10 == 0) == unseen:
            yield text


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_a_small_model_learns_to_write_digits_backwards(seed: int, tmp_path: Path) -> None:
    texts = list(islice(strings(seed, unseen=False), 60_000))
    pairs = tmp_path / "digits.tsv"
    pairs.write_text("".join(f"{text}\t{text[::-1]}\n" for text in texts))
    options = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    run = command(
        "train", "--pairs", str(pairs), "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache"),
        "--preset", "tiny", *options, "--set", f"training.seed={seed}",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    test_texts = list(islice(strings(seed + 1, unseen=True), 1000))
    assert not set(test_texts) & set(texts)
    outputs = heed.load(tmp_path / "run")(test_texts)
    assert sum(text == test_text[::-1] for test_text, text in zip(test_texts, outputs, strict=True)) >= 990
