import random

import pytest

# All random features on, two micro-batches per step, checkpoints in the middle of epochs.
SETTINGS = [
    "model.d_model=16",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.d_ff=16",
    "model.dropout=0.2",
    "data.vocab_size=300",
    "data.bpe_dropout=0.3",
    "training.tokens_per_batch=80",
    "training.accumulate=2",
    "training.validate_every=4",
    "training.checkpoint_every=3",
    "training.keep_last=2",
    "training.warmup_steps=5",
    "training.ema_decay=0.9",
    "training.r_drop=1.0",
]


@pytest.fixture(scope="session")
def train_options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of `heed train` for a tiny model that reverses words, with all random features and short epochs."""
    tmp_path = tmp_path_factory.mktemp("texts")
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdef", k=draw.randint(2, 6))) for _ in range(120)]
    files = {"train": words[:100], "valid": words[100:]}
    for name, lines in files.items():
        (tmp_path / f"{name}.src").write_text("\n".join(lines) + "\n")
        (tmp_path / f"{name}.tgt").write_text("\n".join(line[::-1] for line in lines) + "\n")
    options = ["--source", f"{tmp_path}/train.src", "--target", f"{tmp_path}/train.tgt"]
    options += ["--valid-source", f"{tmp_path}/valid.src", "--valid-target", f"{tmp_path}/valid.tgt"]
    options += ["--preset", "tiny", "--cache", f"{tmp_path}/cache"]
    return options + [word for setting in SETTINGS for word in ("--set", setting)]
