"""Prepares a run's inputs from raw text and settings: token ids on disk, tokenizers, and the complete settings.

All text is read once before anything else, so that the first mistake in it is reported at once; then tokenizers are
trained (a resumed run keeps its own) and all pairs become ids in the cache. Of several processes rank 0 does all this
and sends the others the result as bytes, with the paths of the ids. Knows text, no tensors.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from heed.artifacts.folder import read_model_folder
from heed.config import DataConfig, RunConfig, TrainingConfig
from heed.errors import ConfigError
from heed.model_presets import model_preset
from heed.text.corpus import Corpus, read_pairs
from heed.text.corpus_defaults import (
    Hardware,
    choose_settings,
    choose_tokenizers,
    choose_word_pairs,
    letters_warning,
    tokenizer_is_set,
)
from heed.text.language_codes import infer_languages
from heed.text.length_bound import LengthBound, fit_length_bound
from heed.text.lexicon import Lexicon
from heed.text.normalization import TextStyle
from heed.text.prepare import Encoders, SurveyedCorpora, both_sides, prepare
from heed.text.prepared import Prepared, left_out_warning, none_left_error, open_prepared
from heed.text.sentence_split import SourceLengths, source_lengths
from heed.text.tokenizer import Tokenizer, TokenizerPair
from heed.text.tokenizer_training import train_or_load_tokenizers
from heed.training.presets import NestedSettings, check_positions, merge_settings, preset_for, training_preset
from heed.training.resume import RunRecord, check_new_folder, checkpoint_of, differences, recorded_choices
from heed.training.run_texts import WORD_PAIRS, ReportWork, count_pairs, survey_all, with_validation, with_word_pairs
from heed.training.step_log import Listener
from heed.training.tasks import task_named
from heed.training.tasks.base import Task

_SAMPLES = 1000  # validation sentences translated for BLEU; the loss is over all of them


@dataclass(frozen=True)
class RunInputs:
    """A run's prepared text and complete settings."""

    config: RunConfig
    tokenizers: TokenizerPair
    pairs: Prepared
    validation: Prepared | None
    samples: list[list[str]]  # source and reference of validation sentences to translate
    texts: dict[str, list[dict[str, Any]]]  # names and digests of the texts, for the model card and for resuming
    lengths: SourceLengths | None  # of the training sources; None where the task has no source
    style: TextStyle | None  # of the training sources; None where the task has no source
    lexicon: Lexicon | None  # of the training sources; None unless the model corrects spelling
    checkpoint: Path | None  # to resume from

    def to_bytes(self) -> bytes:
        """JSON for the other processes of the group."""
        source, target = self.tokenizers
        content = {
            "config": self.config.model_dump(mode="json"),
            "tokenizers": [tokenizer.to_json() for tokenizer in ([target] if source is target else [source, target])],
            "folders": [str(pairs.folder) for pairs in (self.pairs, self.validation) if pairs is not None],
            "samples": self.samples,
            "texts": self.texts,
            "lengths": None if self.lengths is None else self.lengths.to_json(),
            "style": None if self.style is None else self.style.to_json(),
            "lexicon": None if self.lexicon is None else self.lexicon.to_json().decode(),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
        }
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, received: bytes) -> "RunInputs":
        """The inverse of `to_bytes`."""
        content = json.loads(received)
        config = RunConfig.model_validate_json(json.dumps(content["config"]))
        types = config.data.tokenizer_types[-len(content["tokenizers"]) :]
        tokenizers = [Tokenizer.from_json(*pair) for pair in zip(content["tokenizers"], types, strict=True)]
        pairs, *validation = (open_prepared(Path(folder)) for folder in content["folders"])
        return cls(
            config,
            (tokenizers[0], tokenizers[-1]),
            pairs,
            validation[0] if validation else None,
            content["samples"],
            content["texts"],
            SourceLengths.from_json(content["lengths"]),
            TextStyle.from_json(content["style"]),
            None if content["lexicon"] is None else Lexicon.from_json(content["lexicon"].encode()),
            None if content["checkpoint"] is None else Path(content["checkpoint"]),
        )


def gather_inputs(
    folder: Path,
    start: RunRecord,
    preset: str | None,
    layers: Sequence[NestedSettings],
    hardware: Hardware,
    listener: Listener,
    *,
    resume: bool,
) -> RunInputs:
    """Prepare the inputs of the run in `folder`, and write its record there.

    layers: settings that override the recorded ones, or the preset's; preset None: chosen by the size of the corpus.
    """
    if not resume:
        check_new_folder(folder)  # before any text is read, which takes minutes for a large corpus
    given = merge_settings(start.settings, *layers)
    data = DataConfig.model_validate(given["data"])
    task = task_named(data.task)
    check_training(TrainingConfig.model_validate(given["training"]), data, hardware.processes)
    training = survey_all([task.corpus(corpus, data) for corpus in start.training], listener.work)
    is_translation = data.task == "translate"
    languages, language_note = language_settings(start.training, start.validation, data) if is_translation else ({}, "")
    defaults = merge_settings(task.defaults, languages)
    settings, notes = _settings(folder, start, preset, defaults, layers, training, hardware, resume=resume)
    validation = survey_all([task.corpus(corpus, data) for corpus in start.validation], listener.work)
    for note in filter(None, (*notes, language_note)):
        listener.note(note)
    record = replace(start, settings=settings)
    inputs = _prepare_all(folder, record, training, validation, listener, resume=resume)
    record.write(folder)
    return inputs


def check_training(settings: TrainingConfig, data: DataConfig, processes: int) -> None:
    """Raise for training settings that do not fit the task or the number of processes."""
    metric = task_named(data.task).metric
    if settings.best_by not in ("loss", metric):
        raise ConfigError(f"training.best_by = {settings.best_by!r}: task = {data.task!r} has loss and {metric}")
    if settings.shard and processes == 1:
        raise ConfigError("training.shard = true needs several processes: start them with torchrun")


def _settings(
    folder: Path,
    start: RunRecord,
    preset: str | None,
    defaults: NestedSettings,
    layers: Sequence[NestedSettings],
    training: SurveyedCorpora,
    hardware: Hardware,
    *,
    resume: bool,
) -> tuple[NestedSettings, list[str]]:
    """The complete settings, and notes on where they come from."""
    if start.settings:
        presets = [] if preset is None else [{"training": training_preset(preset), "model": model_preset(preset)}]
        note = f"texts and settings: as recorded in {folder}; settings given now override them"
        return merge_settings(start.settings, *presets, *layers), [note]
    name = preset or preset_for(count_pairs(training))
    model = {"model": model_preset(name)} if start.init_from is None else read_model_folder(start.init_from).settings()
    settings = merge_settings({"training": training_preset(name)}, model, defaults, *layers)
    notes = [f"settings: preset {name}{'' if preset is not None else ', chosen by the size of the corpus'}"]
    if start.init_from is None and settings["data"].get("task", "translate") == "translate":
        # Repeating the command of a run must not choose anew, on another machine or by another version.
        if resume and (recorded := recorded_choices(folder)):
            return merge_settings(settings, recorded, *layers), [*notes, f"  and what was chosen for {folder}"]
        choices = choose_settings(both_sides(training), settings, merge_settings(*layers), hardware)
        notes += [f"  {choice}" for choice in choices]
    return settings, notes


def with_text_settings(
    data: DataConfig, settings: NestedSettings, training: SurveyedCorpora, listener: Listener
) -> DataConfig:
    """The data settings that `train` would choose for this text, unless `settings` decide them."""
    if data.task != "translate":
        return data
    sides, own = both_sides(training), settings["data"]
    choices = [] if tokenizer_is_set(own) else list(choose_tokenizers(sides))
    chosen = {"data": {**own, **{choice.name: choice.value for choice in choices}}}
    choices += [] if "word_pairs" in own else choose_word_pairs(sides, chosen)
    for choice in choices:
        listener.note(str(choice))
    return data.model_copy(update={choice.name: choice.value for choice in choices})


def language_settings(
    training: Sequence[Corpus], validation: Sequence[Corpus], data: DataConfig
) -> tuple[NestedSettings, str]:
    """The language codes in the file names, as settings, and a note on the languages of the run."""
    set_codes = data.source_language, data.target_language
    detected = infer_languages(training) or infer_languages(validation)
    if all(set_codes):
        return {}, f"languages: {' → '.join(set_codes)}, as set"
    change = "set data.source_language and data.target_language to change them"
    if len(detected) == 1:
        source, target = set_codes[0] or detected[0].source, set_codes[1] or detected[0].target
        settings = {"source_language": source, "target_language": target}
        return {"data": settings}, f"languages: {source} → {target}, from {detected[0].origin} ({change})"
    conflict = "the file names say " + " and ".join(f"{codes.source} → {codes.target}" for codes in detected)
    return {}, (
        f"languages: unknown, since {conflict if detected else 'no file name contains them'}; heed serve will call "
        f"them 'source' and 'target' ({change})"
    )


def prepare_texts(
    surveyed: SurveyedCorpora, encoders: Encoders, max_tokens: int, cache: Path, report: ReportWork, texts: int
) -> Prepared:
    """The ids of all pairs that are neither empty nor too long; raises where none of the first `texts` corpora is left.

    The corpus after those is of single words, which are no reason to train where every sentence is too long.
    """
    count = count_pairs(surveyed)
    pairs = prepare(surveyed, encoders, max_tokens, cache, lambda done: report("tokenising", done, count))
    own = pairs.corpora[:texts]
    if not any(corpus.kept for corpus in own):
        raise none_left_error(own)
    return pairs


def _prepare_all(
    folder: Path,
    record: RunRecord,
    training: SurveyedCorpora,
    validation: SurveyedCorpora,
    listener: Listener,
    *,
    resume: bool,
) -> RunInputs:
    settings, cache = record.settings, record.cache
    checkpoint = checkpoint_of(folder, listener, resume=resume)
    data = DataConfig.model_validate(settings["data"])
    task = task_named(data.task)
    saved = None if checkpoint is None else read_model_folder(checkpoint)
    began_without = saved is not None and not saved.trained.get("texts", {}).get("validation")
    training, validation = with_validation(training, validation, data, listener, hold_some_out=not began_without)
    data = task.complete_data_config(data, (corpus for corpus, _ in training))
    if saved is not None:
        tokenizers = saved.tokenizers
    elif record.init_from is not None:
        tokenizers = read_model_folder(record.init_from).tokenizers
    else:
        tokenizers = train_tokenizers(training, data, task.sides, cache, listener)
    config = _with_vocabulary({**settings, "data": data.model_dump()}, tokenizers, task)
    texts = {"training": _describe(training), "validation": _describe(validation)}
    if saved is not None:
        for note in differences(saved, config, texts):
            listener.note(note)
    encoders = task.encoders(tokenizers, data)
    file, resumes = folder / WORD_PAIRS, saved is not None
    with_words = with_word_pairs(training, file, listener, resumes=resumes) if data.word_pairs else training
    pairs = prepare_texts(with_words, encoders, data.max_tokens, cache, listener.work, len(training))
    held_out = None
    if validation:
        held_out = prepare_texts(validation, encoders, data.max_tokens, cache, listener.work, len(validation))
    for note in (*pairs.notes, *map(str, pairs.corpora), *(_notes_on_validation(held_out) if held_out else ())):
        listener.note(note)
    if warning := left_out_warning(pairs.corpora[: len(training)]):
        listener.warning(warning)
    if data.task == "translate":
        config = _with_length_bound(config, pairs, listener)
        _warn_of_letters(training, pairs, tokenizers, listener)
    samples, lengths = _samples(validation, task.sides), _lengths(training, pairs)
    style = None if lengths is None else both_sides(training)[0].style
    lexicon = Lexicon.from_texts(_sources(training)) if config.translate.correct_spelling else None
    return RunInputs(config, tokenizers, pairs, held_out, samples, texts, lengths, style, lexicon, checkpoint)


def _notes_on_validation(pairs: Prepared) -> list[str]:
    """Also how many pairs were kept of corpora of which some were not."""
    return [*pairs.notes, *(f"validation: {corpus}" for corpus in pairs.corpora if corpus.empty or corpus.too_long)]


def train_tokenizers(
    training: SurveyedCorpora, data: DataConfig, sides: tuple[str, ...], cache: Path, listener: Listener
) -> TokenizerPair:
    """Source and target tokenizer, trained on this text or read from the cache."""
    trained = train_or_load_tokenizers(
        training, data, sides, cache, partial(listener.work, "training the tokenizer", 0, None)
    )
    for note in trained.notes:
        listener.note(note)
    for tokenizer in dict.fromkeys((trained.source, trained.target)):
        size = data.vocab_size if tokenizer.kind in ("bpe", "unigram", "words") else None
        if size is not None and tokenizer.vocab_size < size:
            possible = f"{tokenizer.vocab_size:,}"
            listener.note(f"data.vocab_size = {size:,}, but the text has words for only {possible} tokens")
    return trained.source, trained.target


def _lengths(training: SurveyedCorpora, pairs: Prepared) -> SourceLengths | None:
    kept = sum(counts.kept for counts, _ in zip(pairs.corpora, training, strict=False))  # without word pairs
    tokens = pairs.source.lengths()[:kept]
    return source_lengths(tokens, max(result.sentences for _, result in training)) if tokens.any() else None


def _sources(surveyed: SurveyedCorpora) -> Iterator[str]:
    return (pair.source for corpus, _ in surveyed for pair in read_pairs(corpus))


def _with_vocabulary(settings: NestedSettings, tokenizers: TokenizerPair, task: Task) -> RunConfig:
    source, target = tokenizers
    data = DataConfig.model_validate(settings["data"])
    model: dict[str, Any] = {**settings["model"], "vocab_size": target.vocab_size, "kind": task.kind}
    model.update(task.model_settings(data))
    # Two tokenizers need not be two vocabularies: an imported model may segment each side differently, to shared ids.
    if data.has_two_vocabularies:
        model["source_vocab_size"] = source.vocab_size
    check_positions(model, data.max_tokens)
    return RunConfig.model_validate({**settings, "model": model})


def _with_length_bound(config: RunConfig, pairs: Prepared, listener: Listener) -> RunConfig:
    """The settings with a limit for the length of outputs that all training targets keep to."""
    search, targets = config.search, pairs.target.lengths()
    bound = fit_length_bound(pairs.source.lengths(), targets)
    bound = LengthBound(max(bound.ratio, search.max_length_ratio), max(bound.extra, search.max_length_extra))
    if search.max_length is None:
        listener.note(f"output length: at most {bound} tokens; the longest training target has {targets.max():,}")
    search = search.model_copy(update={"max_length_ratio": bound.ratio, "max_length_extra": bound.extra})
    return config.model_copy(update={"search": search})


def _warn_of_letters(training: SurveyedCorpora, pairs: Prepared, tokenizers: TokenizerPair, listener: Listener) -> None:
    """Warn, once, of tokenizers that split words into letters although they should not."""
    for side, ids, tokenizer in zip(both_sides(training), (pairs.source, pairs.target), tokenizers, strict=True):
        if tokenizer.kind in ("bpe", "unigram", "words"):
            warning = letters_warning(side, float(ids.lengths().mean()), tokenizer.vocab_size)
            if warning is not None:
                listener.warning(warning)
                return


def _samples(validation: SurveyedCorpora, sides: tuple[str, ...]) -> list[list[str]]:
    """The first validation pairs with text on every side that the task needs."""
    pairs = (pair for corpus, _ in validation for pair in read_pairs(corpus))
    complete = (pair for pair in pairs if all(getattr(pair, side) for side in sides))
    return [[pair.source, pair.target] for pair in islice(complete, _SAMPLES)]


def _describe(surveyed: SurveyedCorpora) -> list[dict[str, Any]]:
    return [
        {"name": corpus.name, "weight": corpus.weight, "pairs": result.pairs, "digest": result.digest}
        for corpus, result in surveyed
    ]
