"""`heed.distil`: trains a student on the training text of its teachers and on their translations of it.

Sequence-level knowledge distillation (Kim and Rush 2016): the teachers, as one ensemble, translate the sources they
were trained on, and the student is trained on these pairs besides the original ones. All text is first written to the
student's folder; the rest is an ordinary training run.

    OUT/distilled/training-1.jsonl      one file per corpus: the pairs that the teachers were trained on
    OUT/distilled/translated-1.jsonl    the same sources with the teachers' translations
    OUT/distilled/validation-1.jsonl    the teachers' validation pairs; none of them is in the other files
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from heed.config import DataConfig
from heed.errors import ConfigError, DataError, FolderError, InputError
from heed.inference.open import load
from heed.inference.translator import Translator
from heed.text.corpus import Corpus, Pair, read_pairs
from heed.text.prepare import SurveyedCorpora
from heed.training.presets import merge_settings, nest_settings, preset_for, setting_layers
from heed.training.resume import RunRecord
from heed.training.run_inputs import count_pairs, survey_all, with_validation
from heed.training.step_log import Listener
from heed.training.train import AnyPath, TrainedRun, train

_FOLDER = "distilled"
_CHUNK = 1000  # sources translated at a time: enough to batch sentences of similar length


def distil(
    *teachers: AnyPath,
    out: AnyPath,
    preset: str | None = None,
    config: AnyPath | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    cache: AnyPath | None = None,
    listener: Listener | None = None,
) -> TrainedRun:
    """Train a student on the training text of its teachers and on their translations of it, as `heed distil` does.

    teachers: run folders of `heed train` with the same vocabulary; the text is that of the first. The student has the
    settings of the first teacher, since one that is regularised less than its teachers overfits their translations.
    preset: instead of the teacher's model and training settings; `config` and `settings` override either.
    resume: continue a distillation in `out`, whether it was translating or training.
    """
    if not teachers:
        raise InputError("distil needs the run folder of at least one teacher, found none")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("distil runs in one process: start it without torchrun")
    layers = setting_layers(None if config is None else Path(config), nest_settings(settings or {}), None, None, None)
    folder, listener = Path(out), listener or Listener()
    record = _read_record(Path(teachers[0]))
    sections = ("data", "search") if preset is not None else ("data", "search", "model", "training")
    inherited = {name: record.settings.get(name, {}) for name in sections}
    listener.note(f"{', '.join(sections)} settings: those of {teachers[0]}, unless they are set for the student")
    data = DataConfig.model_validate(merge_settings(inherited, *layers)["data"])
    training, validation = _texts(record, data, listener)
    text = folder / _FOLDER
    if text.exists() and not resume:
        raise FolderError(
            f"{folder} already holds a distillation: resume it (--resume, or resume=True), or choose another output "
            "folder"
        )
    valid_files = _write_pairs(validation, text, "validation")
    files = _write_pairs(training, text, "training")
    files += _translate_corpora(teachers, training, text, listener)
    weights = [corpus.weight for corpus, _ in training]
    inherited["data"] = {**inherited["data"], "hold_out": None if valid_files else 0}
    return train(
        out=folder,
        pairs=files,
        weight=weights + weights,
        valid_pairs=valid_files,
        preset=preset or preset_for(count_pairs(training)),
        settings=merge_settings(inherited, *layers),
        resume=resume,
        cache=record.cache if cache is None else cache,
        listener=listener,
    )


def _read_record(teacher: Path) -> RunRecord:
    try:
        record = RunRecord.read(teacher)
    except DataError:
        raise FolderError(
            f"{teacher} has no run.json, which names the training text: a teacher is the folder of a run of heed train"
        ) from None
    task = record.settings.get("data", {}).get("task", "translate")
    if task != "translate":
        raise ConfigError(f"{teacher} was trained with task = {task!r}: only translation models can be distilled")
    return record


def _texts(record: RunRecord, data: DataConfig, listener: Listener) -> tuple[SurveyedCorpora, SurveyedCorpora]:
    """The training and the validation text of a teacher, as its own run divided them."""
    training, validation = (survey_all(corpora, listener.work) for corpora in (record.training, record.validation))
    return with_validation(training, validation, data, listener)


def _write_pairs(surveyed: SurveyedCorpora, folder: Path, name: str) -> list[str]:
    """Write the pairs of each corpus to a file `NAME-NUMBER.jsonl`; returns the paths."""
    files = []
    for number, (corpus, _) in enumerate(surveyed, 1):
        file = folder / f"{name}-{number}.jsonl"
        if not file.exists():
            _unfinished(file).unlink(missing_ok=True)
            _append(_unfinished(file), read_pairs(corpus))
            _unfinished(file).replace(file)
        files.append(str(file))
    return files


def _translate_corpora(
    teachers: Iterable[AnyPath], surveyed: SurveyedCorpora, folder: Path, listener: Listener
) -> list[str]:
    """Write the teachers' translations of each corpus to a file `translated-NUMBER.jsonl`; returns the paths."""
    files = [folder / f"translated-{number}.jsonl" for number, _ in enumerate(surveyed, 1)]
    if not all(file.exists() for file in files):
        teacher = load(*(os.fspath(teacher) for teacher in teachers))
        listener.note(f"translating with backend {teacher.backend.choice}")
        truncated = 0
        for file, (corpus, survey) in zip(files, surveyed, strict=True):
            if not file.exists():
                truncated += _translate_corpus(teacher, corpus, survey.pairs, file, listener)
        if truncated:
            listener.note(f"{truncated:,} translations reached the length limit and are left out")
    return [str(file) for file in files]


def _translate_corpus(teacher: Translator, corpus: Corpus, total: int, file: Path, listener: Listener) -> int:
    """Write the translation of each source, after those that are there already; returns how many were truncated.

    A truncated translation is written as an empty one: training leaves it out, and the lines stay aligned.
    """
    unfinished, truncated = _unfinished(file), 0
    done = _complete_lines(unfinished)
    pairs = islice(read_pairs(corpus), done, None)
    while chunk := list(islice(pairs, _CHUNK)):
        listener.work("translating", done, total)
        results = teacher.translate([pair.source for pair in chunk], align=False)
        texts = ["" if result.truncated else result.text for result in results]
        _append(unfinished, (Pair(pair.source, text, 0) for pair, text in zip(chunk, texts, strict=True)))
        truncated += sum(result.truncated for result in results)
        done += len(chunk)
    listener.work("translating", done, total)
    unfinished.replace(file)
    return truncated


def _unfinished(file: Path) -> Path:
    return file.with_name(f".{file.name}.writing")


def _append(file: Path, pairs: Iterable[Pair]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.writelines(_rows(pairs))


def _rows(pairs: Iterable[Pair]) -> Iterator[str]:
    for pair in pairs:
        yield json.dumps({"source": pair.source, "target": pair.target}, ensure_ascii=False) + "\n"


def _complete_lines(file: Path) -> int:
    """The number of lines of a file whose writing was interrupted; an incomplete last line is removed."""
    if not file.exists():
        return 0
    content = file.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        file.write_bytes(complete)
    return complete.count(b"\n")
