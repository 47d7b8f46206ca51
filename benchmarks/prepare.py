"""Preparing text: heed beside the `tokenizers` library alone, on the same lines; and how fast batches are made.

    python benchmarks/prepare.py [--source train.en --target train.de] [--times 7] [--rounds 5]

Without files the text is 200,000 pairs of the built-in world. At most 8,000 tokens are learnt from it. In turns:

    encode: tokenizers alone    all lines, in memory, in one call of `encode_batch_fast`; its ids are not even looked at
    encode: heed                the second half of `heed prepare`: files read, encoded, filtered, written, synced
    learn: tokenizers alone     its own trainer over all lines, in memory
    learn: heed                 the same vocabulary from the files
    read: heed                  the first half of `heed prepare`: files read, checked, a digest made
    batches                     what a GPU is fed: 25,000 target tokens filled up to one shape, made by one thread
    batches, BPE-dropout        the same, every sentence cut anew

heed remembers what words become, so text that comes again is quicker: --times 1 shows text that comes once. The middle
of all rounds counts, and a ratio is the middle of the rounds' ratios.
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

WORDS, LONGEST, TOKENS, SOME = 8000, 256, 25_000, 10


def write_text(folder: Path, asked: argparse.Namespace) -> Corpus:
    """The text to prepare, as files."""
    if asked.source:
        sides = [list(read_lines(path)) for path in (asked.source, asked.target)]
    else:
        pairs = microworld("train", 200_000)
        sides = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
    source, target = folder / "text.source", folder / "text.target"
    for path, lines in zip((source, target), sides, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines) * asked.times, encoding="utf-8")
    return Corpus(str(source), str(target))


def learn_alone(lines: list[str]) -> Backend:
    """A vocabulary as heed learns it, by the library alone."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    alphabet, special = list(BYTE_TOKENS), list(SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, min_frequency=2, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    return backend


def make_batches(pairs: Prepared, recut: Resegment | None) -> Callable[[], int]:
    """What makes some batches and counts their target tokens; other ones every time."""
    batches = Batches(pairs, TOKENS, 1, recut, mixed=True)
    order = iter([(numbers, epoch) for epoch in range(100) for numbers in batches.epoch(epoch)])
    shape = BucketShape.for_batches_like([batches.batch(*next(order)) for _ in range(SOME)], LONGEST)

    def some() -> int:
        made = [part for _ in range(SOME) for part in split_to_fit(batches.batch(*next(order)), shape)]
        return sum(shape.batch(shape.pad(part), part.tokens).tokens for part in made)

    return some


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """How long it takes, and what comes of it, which is thrown away after the clock has stopped."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def measure(folder: Path, asked: argparse.Namespace) -> dict[str, list[float]]:
    """Pairs or target tokens a second of everything, a number a round."""
    corpus = write_text(folder, asked)
    lines = [f" {line}" for path in (corpus.source, corpus.target) for line in read_lines(str(path)) if line]
    data, read = DataConfig(vocab_size=WORDS), survey(corpus)

    def learn() -> Tokenizer:
        place = Path(tempfile.mkdtemp(dir=folder))
        return train_or_load_tokenizers([(corpus, read)], data, ("source", "target"), place, lambda: None)[0]

    tokenizer = learn()
    assert tokenizer.to_json() == Tokenizer.from_json(plain(learn_alone(lines)), "bpe").to_json()
    backend, dropout = Backend.from_str(tokenizer.to_json()), bpe_dropout(tokenizer, 0.1)

    def encode() -> Prepared:
        place = Path(tempfile.mkdtemp(dir=folder))
        return prepare([(corpus, read)], Encoders(tokenizer, tokenizer), LONGEST, place)

    ready = encode()
    batches = {
        "batches": make_batches(ready, None),
        "batches, BPE-dropout": make_batches(ready, Resegment(dropout, dropout, LONGEST)),
    }
    systems: dict[str, Callable[[], object]] = {
        "encode: tokenizers alone": lambda: backend.encode_batch_fast(lines),
        "encode: heed": encode,
        "learn: tokenizers alone": lambda: learn_alone(lines),
        "learn: heed": learn,
        "read: heed": lambda: survey(corpus),
        **batches,
    }
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(asked.rounds):
        for name, work in systems.items():
            seconds, result = timed(work)
            found[name].append((result if isinstance(result, int) else read.pairs) / seconds)
            del result
    return found


def plain(backend: Backend) -> str:
    """Its JSON without added tokens, which heed's have not."""
    return json.dumps(json.loads(backend.to_str()) | {"added_tokens": []})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source")
    parser.add_argument("--target")
    parser.add_argument("--times", type=int, default=1, help="so often the text follows upon itself")
    parser.add_argument("--rounds", type=int, default=5)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), parser.parse_args())
    for name, speeds in found.items():
        unit = "target tokens a second" if name.startswith("batches") else "pairs a second"
        told = {"what": name, unit: round(statistics.median(speeds))}
        told |= {"lowest and highest": [round(bound(speeds)) for bound in (min, max)]}
        alone = found.get(name.replace("heed", "tokenizers alone"), speeds)
        if alone is not speeds:
            ratios = [own / other for own, other in zip(speeds, alone, strict=True)]
            told |= {"times tokenizers alone": round(statistics.median(ratios), 2)}
            told |= {"lowest": round(min(ratios), 2)}
        print(json.dumps(told))


if __name__ == "__main__":
    main()
