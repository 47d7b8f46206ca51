"""The runs of the claim on natural text: each is trained and tested in one job, and leaves one line of JSON.

The lines are enough to go on: with `runs.jsonl` alone, even on another machine, no finished run is trained again.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from heed.claims.claim import Context
from heed.claims.parallel_corpus import ParallelCorpus, length_groups
from heed.claims.processes import JobPool
from heed.claims.runs import check_settings, time_left, train_model
from heed.config import DataConfig
from heed.evaluation.metrics import bleu
from heed.inference.open import load
from heed.training.corpora import PairFileOptions, TextFiles, training_corpora
from heed.training.run_inputs import train_tokenizers
from heed.training.run_texts import survey_all
from heed.training.step_log import JOURNAL, Listener, read_journal

RUNS = "runs.jsonl"
TOKENIZER = "bpe"
_GROUPS = 5  # of sentences by length
# As in the paper: heed train would choose rotary positions and add word pairs.
_PLAIN = {"model.positions": "sinusoidal", "data.word_pairs": False}


@dataclass(frozen=True)
class FinishedRun:
    """What a run leaves: its learning curve, its BLEU by source length, and the time of its steps."""

    name: str
    key: str  # a digest of all settings and of the text
    bleu: dict[int, float]  # of greedy translations of the validation text, by step
    by_length: list[float]  # BLEU of the saved model for each group of sentences
    seconds_per_step: float

    @property
    def final(self) -> float:
        """BLEU after the last step."""
        return self.bleu[max(self.bleu)]

    @classmethod
    def from_json(cls, line: str) -> "FinishedRun":
        """The inverse of `json.dumps(asdict(run))`."""
        content = json.loads(line)
        return cls(**{**content, "bleu": {int(step): score for step, score in content["bleu"].items()}})


@dataclass(frozen=True)
class Runs:
    """The runs of a claim, in its folder."""

    context: Context
    corpus: ParallelCorpus
    pool: JobPool

    def finished(self, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, FinishedRun]:
        """Each run trained and tested, by name; those that failed are left out, and reported.

        settings: of each run, by name.
        """
        keys = {name: self._key(of_run) for name, of_run in settings.items()}
        recorded = self._recorded()
        done = {name: recorded[key] for name, key in keys.items() if key in recorded}
        folder = self.context.folder
        folder.mkdir(parents=True, exist_ok=True)
        jobs = {
            name: (folder / name, name, keys[name], dict(of_run), self.corpus)
            for name, of_run in settings.items()
            if name not in done
        }

        began, before = time.monotonic(), len(done)

        def record(name: str, run: FinishedRun) -> None:
            done[name] = run
            with (folder / RUNS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")
            missing = len(settings) - len(done)
            self.context.report(
                f"{name}: BLEU {run.final:.2f}, {run.seconds_per_step:.3f} s per step; {missing} to go"
                + time_left(began, len(done) - before, missing)
            )

        if jobs:
            self.context.report(f"training {len(jobs)} models")
            errors = self.pool.run(jobs, train_and_test, record, self.context.report)
            for name, error in errors.items():
                self.context.report(f"left out: {name}: {error}")
        return {name: done[name] for name in settings if name in done}

    def alone(self) -> "Runs":
        """These runs one after the other, so that their times can be compared."""
        return replace(self, pool=JobPool(1))

    def _recorded(self) -> dict[str, FinishedRun]:
        file = self.context.folder / RUNS
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return {run.key: run for run in map(FinishedRun.from_json, lines)}

    def _key(self, settings: Mapping[str, Any]) -> str:
        content = json.dumps([self.corpus.description, settings], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def vocabulary(context: Context, corpus: ParallelCorpus) -> int:
    """The number of tokens in the vocabulary of all runs, whose tokenizer is trained here, once."""
    silent, files = Listener(), TextFiles.of(corpus.source, corpus.target, (), ())
    training = survey_all(training_corpora(files, PairFileOptions()), silent.work)
    data = DataConfig.model_validate({"tokenizer": TOKENIZER})
    _, target = train_tokenizers(training, data, ("source", "target"), context.folder / "cache", silent)
    return target.vocab_size


def groups_of(corpus: ParallelCorpus) -> list[tuple[int, int]]:
    """Groups of validation sentences by the number of words in the source."""
    return length_groups([len(source.split()) for source, _ in corpus.validation_pairs], _GROUPS)


def train_and_test(
    folder: Path, name: str, key: str, settings: Mapping[str, Any], corpus: ParallelCorpus
) -> FinishedRun:
    """Train a model, and translate the validation text with the saved one."""
    check_settings(folder, settings)
    train_model(folder, {**corpus.arguments(), "preset": "tiny", "settings": {**_PLAIN, **settings}})
    entries = read_journal(folder / JOURNAL)
    scores = {entry["step"]: entry["bleu"] for entry in entries if "validation_loss" in entry}
    times = [entry["seconds"] for entry in entries if "seconds" in entry]
    pairs = corpus.validation_pairs
    outputs = load(folder).translate([source for source, _ in pairs], beam=1, align=False)
    by_length = []
    for above, longest in groups_of(corpus):
        chosen = [index for index, (source, _) in enumerate(pairs) if above < len(source.split()) <= longest]
        by_length.append(bleu([outputs[index].text for index in chosen], [pairs[index][1] for index in chosen]))
    # The first steps compile and allocate.
    return FinishedRun(name, key, scores, by_length, median(times[len(times) // 2 :]))
