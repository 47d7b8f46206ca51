"""Raw text and settings to all that training needs of them; the half of setting up a run that knows text, not tensors.

Text is read through once before anything else, so that its first mistake is found at once; then tokenizers are learnt
(a resumed run keeps its own) and all pairs become ids in the cache. In a team of processes the first does all this and
sends the others what it found, as bytes: the ids themselves are on the disk.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from heed.artifacts.folder import read_model_folder
from heed.config import DataConfig, RunConfig
from heed.errors import ConfigError, DataError
from heed.text.corpus import Corpus, read_pairs
from heed.text.hold_out import hold_out, pairs_to_hold_out
from heed.text.language_codes import languages_of
from heed.text.prepare import Encoders, Survey, prepare, survey
from heed.text.prepared import Prepared, open_prepared
from heed.text.sentences import SourceLengths, source_lengths
from heed.text.tokenizer import Tokenizer
from heed.text.tokenizer_training import learn_tokenizers
from heed.training.presets import Nested, check_positions
from heed.training.resuming import checkpoint_of, differences
from heed.training.task import Task
from heed.training.tasks import task_named

_TRANSLATED = 1000  # validation sentences translated for BLEU; the loss is over all

Report = Callable[[str, int, int | None], None]  # what is being done, pairs done, pairs in all if known
Surveyed = list[tuple[Corpus, Survey]]


@dataclass(frozen=True)
class Material:
    """What a run is made from."""

    config: RunConfig
    tokenizers: tuple[Tokenizer, Tokenizer]
    pairs: Prepared
    validation: Prepared | None
    samples: list[list[str]]  # source and reference of validation sentences to translate
    texts: dict[str, list[dict[str, Any]]]  # which texts these are, for the model card and for resuming
    lengths: SourceLengths | None  # of the training sources; none where there are none
    checkpoint: Path | None  # where to go on from
    notes: list[str]  # what a person should be told

    def to_bytes(self) -> bytes:
        """For the other processes of a team."""
        source, target = self.tokenizers
        what = {
            "config": self.config.model_dump(mode="json"),
            "tokenizers": [one.to_json() for one in ([target] if source is target else [source, target])],
            "folders": [str(one.folder) for one in (self.pairs, self.validation) if one is not None],
            "samples": self.samples,
            "texts": self.texts,
            "lengths": None if self.lengths is None else self.lengths.to_json(),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
        }
        return json.dumps(what).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Material":
        """What `to_bytes` wrote, all but the notes."""
        what = json.loads(content)
        config = RunConfig.model_validate_json(json.dumps(what["config"]))
        tokenizers = [Tokenizer.from_json(text, config.data.tokenizer) for text in what["tokenizers"]]
        pairs, *validation = (open_prepared(Path(folder)) for folder in what["folders"])
        return cls(
            config,
            (tokenizers[0], tokenizers[-1]),
            pairs,
            validation[0] if validation else None,
            what["samples"],
            what["texts"],
            SourceLengths.from_json(what["lengths"]),
            None if what["checkpoint"] is None else Path(what["checkpoint"]),
            [],
        )


def survey_all(corpora: Iterable[Corpus], report: Report) -> Surveyed:
    """Read every corpus through; each must have something in it."""
    surveyed = []
    for corpus in corpora:
        found = survey(corpus, lambda done: report("reading", done, None))
        if found.pairs == 0:
            raise DataError(f"{corpus.name} is empty")
        surveyed.append((corpus, found))
    return surveyed


def language_settings(training: Sequence[Corpus], validation: Sequence[Corpus], data: DataConfig) -> tuple[Nested, str]:
    """The language codes that the texts' names say, as settings, and what to tell a person of all codes in force."""
    set_, found = (data.source_language, data.target_language), languages_of(training) or languages_of(validation)
    if all(set_):
        return {}, f"languages: {' → '.join(set_)}, as set"
    if len(found) == 1:
        codes = set_[0] or found[0].source, set_[1] or found[0].target
        otherwise = "--source-language and --target-language say otherwise"
        settings = {"source_language": codes[0], "target_language": codes[1]}
        return {"data": settings}, f"languages: {' → '.join(codes)}, from {found[0].origin} ({otherwise})"
    why = "the files' names say " + " and ".join(f"{one.source} → {one.target}" for one in found)
    return {}, (
        f"languages: unknown, since {why if found else 'no name of a file says them'}; heed serve will call them "
        "'source' and 'target' unless you say them: --source-language en --target-language de here, or --languages "
        "en-de there"
    )


def with_validation(
    training: Surveyed, validation: Surveyed, data: DataConfig, report: Report, *, hold_some_out: bool = True
) -> tuple[Surveyed, Surveyed, list[str]]:
    """Text to learn from, text to validate on, held out of it where none is given, and what to say about that."""
    if validation:
        if data.hold_out:
            raise ConfigError(f"data.hold_out = {data.hold_out} is for runs without validation text, and some is given")
        return training, validation, []
    pairs = sum(found.pairs for _, found in training)
    if hold_some_out and (count := pairs_to_hold_out(pairs, data.hold_out)):
        sides = task_named(data.task).sides
        training, validation = hold_out(training, count, sides, lambda done: report("holding out", done, pairs))
    if held_out := sum(found.pairs for _, found in validation):
        said = (
            f"validation: no text was given, so {held_out:,} of {pairs:,} are held out (data.hold_out=0 holds out none)"
        )
    else:
        why = "as set" if data.hold_out == 0 or not hold_some_out else f"{pairs:,} are too few to hold some out"
        said = f"validation: none ({why}): no early stopping, and the last checkpoint becomes the model"
    return training, validation, [said]


def prepare_texts(surveyed: Surveyed, encoders: Encoders, max_tokens: int, cache: Path, report: Report) -> Prepared:
    """The ids of all pairs worth keeping; there must be some."""
    count = sum(found.pairs for _, found in surveyed)
    pairs = prepare(surveyed, encoders, max_tokens, cache, lambda done: report("preparing", done, count))
    if len(pairs) == 0:
        raise DataError(f"nothing to use is left: {'; '.join(str(kept) for kept in pairs.corpora)}")
    return pairs


def gather_material(
    folder: Path,
    settings: Nested,
    training: Surveyed,
    validation: Surveyed,
    cache: Path,
    *,
    resume: bool,
    report: Report,
    init_from: Path | None = None,
) -> Material:
    """Everything that a run in `folder` needs of its texts. init_from: a model whose vocabulary to take."""
    checkpoint, notes = checkpoint_of(folder, resume=resume)
    wanted = DataConfig.model_validate(settings["data"])
    task = task_named(wanted.task)
    saved = None if checkpoint is None else read_model_folder(checkpoint)
    begun_without = saved is not None and not saved.trained.get("texts", {}).get("validation")
    training, validation, said = with_validation(training, validation, wanted, report, hold_some_out=not begun_without)
    notes += said
    data = task.settle(wanted, (corpus for corpus, _ in training))
    if saved is not None:
        tokenizers = saved.tokenizers
    elif init_from is not None:
        tokenizers = read_model_folder(init_from).tokenizers
    else:
        announce = partial(report, "learning a vocabulary", 0, None)
        trained = learn_tokenizers(training, data, task.sides, cache, announce)
        tokenizers, notes = (trained.source, trained.target), notes + trained.notes
    config = _with_vocabulary({**settings, "data": data.model_dump()}, tokenizers, task)
    texts = {"training": _describe(training), "validation": _describe(validation)}
    if saved is not None:
        notes += differences(saved, config, texts)
    encoders = task.encoders(tokenizers, data)
    pairs = prepare_texts(training, encoders, data.max_tokens, cache, report)
    held_out = prepare_texts(validation, encoders, data.max_tokens, cache, report) if validation else None
    notes += [*pairs.notes, *(str(kept) for kept in pairs.corpora), *(held_out.notes if held_out else ())]
    samples, lengths = _samples(validation, task.sides), _lengths(training, pairs)
    return Material(config, tokenizers, pairs, held_out, samples, texts, lengths, checkpoint, notes)


def _lengths(training: Surveyed, pairs: Prepared) -> SourceLengths | None:
    tokens = pairs.source.lengths()
    return source_lengths(tokens, max(found.sentences for _, found in training)) if tokens.any() else None


def _with_vocabulary(settings: Nested, tokenizers: tuple[Tokenizer, Tokenizer], task: Task) -> RunConfig:
    source, target = tokenizers
    data = DataConfig.model_validate(settings["data"])
    model: dict[str, Any] = {**settings["model"], "vocab_size": target.vocab_size, "kind": task.kind}
    model.update(task.shape(data))
    # Two tokenizers need not be two vocabularies: an imported model may cut each side in its own way, to shared ids.
    if data.separate_vocabularies:
        model["source_vocab_size"] = source.vocab_size
    check_positions(model, data.max_tokens)
    return RunConfig.model_validate({**settings, "model": model})


def _samples(validation: Surveyed, sides: tuple[str, ...]) -> list[list[str]]:
    """The first pairs of which no side is missing."""
    read = (pair for corpus, _ in validation for pair in read_pairs(corpus))
    whole = (pair for pair in read if all(getattr(pair, side) for side in sides))
    return [[pair.source, pair.target] for pair in islice(whole, _TRANSLATED)]


def _describe(surveyed: Surveyed) -> list[dict[str, Any]]:
    return [
        {"name": corpus.name, "weight": corpus.weight, "pairs": found.pairs, "digest": found.digest}
        for corpus, found in surveyed
    ]
