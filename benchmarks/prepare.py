"""Text preparation: heed beside the `tokenizers` library, on the same lines; and how fast batches are made.

    python benchmarks/prepare.py [--source train.en --target train.de] [--times 7] [--rounds 5]

Without files the text is 200,000 pairs of the built-in microworld; the vocabulary has 8,000 entries. Measured in turn:

    encode: tokenizers          all lines, in memory, in one call of `encode_batch_fast`; the ids are discarded
    encode: heed                the second half of `heed prepare`: files read, encoded, filtered, written, synced
    train: tokenizers           its BPE trainer over all lines, in memory
    train: heed                 the same vocabulary, from the files
    read: heed                  the first half of `heed prepare`: files read, checked and hashed
    batches                     batches for a GPU: 25,000 target tokens padded to a static shape, made by one thread
    batches, BPE dropout        the same batches, every sentence re-segmented

heed caches the segmentation of words, so repeated text is faster: --times 1 measures the text once. The median of all
rounds counts, and a ratio is the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from heed.backends.select import bpe_dropout
from heed.config import DataConfig
from heed.microworld.corpus import corpus as microworld
from heed.text.corpus import Corpus, read_lines
from heed.text.prepare import Encoders, prepare, survey
from heed.text.prepared import Prepared
from heed.text.tokenizer import BYTE_TOKENS, SPECIAL, Tokenizer
from heed.text.tokenizer_training import train_or_load_tokenizers
from heed.training.batches import Batches, Resegment
from heed.training.bucketing import BucketShape, split_to_fit

VOCABULARY, LONGEST, TOKENS, BATCHES = 8000, 256, 25_000, 10


def write_text(folder: Path, options: argparse.Namespace) -> Corpus:
    """The text to prepare, as files."""
    if options.source:
        sides = [list(read_lines(path)) for path in (options.source, options.target)]
    else:
        pairs = microworld("train", 200_000)
        sides = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
    source, target = folder / "text.source", folder / "text.target"
    for path, lines in zip((source, target), sides, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines) * options.times, encoding="utf-8")
    return Corpus(str(source), str(target))


def train_with_tokenizers(lines: list[str]) -> Backend:
    """heed's vocabulary, trained by the library alone."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    alphabet, special = list(BYTE_TOKENS), list(SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=2, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    return backend


def make_batches(pairs: Prepared, resegment: Resegment | None) -> Callable[[], int]:
    """A function that makes the next BATCHES batches and returns their target tokens."""
    batches = Batches(pairs, TOKENS, 1, resegment, mixed=True)
    order = iter([(numbers, epoch) for epoch in range(100) for numbers in batches.epoch(epoch)])
    shape = BucketShape.for_batches_like([batches.batch(*next(order)) for _ in range(BATCHES)], LONGEST)

    def some() -> int:
        made = [part for _ in range(BATCHES) for part in split_to_fit(batches.batch(*next(order)), shape)]
        return sum(shape.batch(shape.pad(part), part.tokens).tokens for part in made)

    return some


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """How long it takes, and what comes of it, which is thrown away after the clock has stopped."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def measure(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Pairs/s or target tokens/s of each measurement, one number per round."""
    corpus = write_text(folder, options)
    lines = [f" {line}" for path in (corpus.source, corpus.target) for line in read_lines(str(path)) if line]
    data, read = DataConfig(vocab_size=VOCABULARY), survey(corpus)

    def train() -> Tokenizer:
        cache = Path(tempfile.mkdtemp(dir=folder))
        return train_or_load_tokenizers([(corpus, read)], data, ("source", "target"), cache, lambda: None)[0]

    tokenizer = train()
    assert tokenizer.to_json() == Tokenizer.from_json(plain(train_with_tokenizers(lines)), "bpe").to_json()
    backend, dropout = Backend.from_str(tokenizer.to_json()), bpe_dropout(tokenizer, 0.1)

    def encode() -> Prepared:
        cache = Path(tempfile.mkdtemp(dir=folder))
        return prepare([(corpus, read)], Encoders(tokenizer, tokenizer), LONGEST, cache)

    ready = encode()
    batches = {
        "batches": make_batches(ready, None),
        "batches, BPE dropout": make_batches(ready, Resegment(dropout, dropout, LONGEST)),
    }
    systems: dict[str, Callable[[], object]] = {
        "encode: tokenizers": lambda: backend.encode_batch_fast(lines),
        "encode: heed": encode,
        "train: tokenizers": lambda: train_with_tokenizers(lines),
        "train: heed": train,
        "read: heed": lambda: survey(corpus),
        **batches,
    }
    measured: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(options.rounds):
        for name, work in systems.items():
            seconds, result = timed(work)
            measured[name].append((result if isinstance(result, int) else read.pairs) / seconds)
            del result
    return measured


def plain(backend: Backend) -> str:
    """The tokenizer's JSON without added tokens, as heed writes it."""
    return json.dumps(json.loads(backend.to_str()) | {"added_tokens": []})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source")
    parser.add_argument("--target")
    parser.add_argument("--times", type=int, default=1, help="repetitions of the text")
    parser.add_argument("--rounds", type=int, default=5)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), parser.parse_args())
    for name, speeds in measured.items():
        unit = "target tokens/s" if name.startswith("batches") else "pairs/s"
        line = {"measurement": name, unit: round(statistics.median(speeds))}
        line |= {"min and max": [round(bound(speeds)) for bound in (min, max)]}
        baseline = measured.get(name.replace("heed", "tokenizers"), speeds)
        if baseline is not speeds:
            ratios = [speed / other for speed, other in zip(speeds, baseline, strict=True)]
            line |= {"speedup over tokenizers": round(statistics.median(ratios), 2), "min": round(min(ratios), 2)}
        print(json.dumps(line))


if __name__ == "__main__":
    main()
