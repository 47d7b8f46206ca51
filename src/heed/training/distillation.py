"""`heed.distil`: trains a student on the training text of its teachers and on translations of it.

Sequence-level knowledge distillation (Kim and Rush 2016): the teachers, as one ensemble, translate the sources they
were trained on, and the student is trained on these pairs besides the original ones. Models of the opposite direction
may translate the targets too (data diversification, Nguyen et al. 2020): the student sees each target with several
sources. All text is first written to the student's folder; the rest is an ordinary training run.

    OUT/distilled/training-1.jsonl        one file per corpus: the pairs that the teachers were trained on
    OUT/distilled/translated-1.jsonl      the same sources with the teachers' translations
    OUT/distilled/reverse-1-1.jsonl       the same targets with the first reverse teacher's translations as sources
    OUT/distilled/validation-1.jsonl      the teachers' validation pairs; none of them is in the other files
    OUT/distilled/teachers.json           who translated; checked on resume
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heed.artifacts.folder import read_model_folder
from heed.artifacts.writing import json_bytes, write_and_sync
from heed.config import DataConfig
from heed.errors import ConfigError, DataError, FolderError, InputError
from heed.text.prepare import SurveyedCorpora
from heed.training.presets import merge_settings, nest_settings, preset_for, setting_layers
from heed.training.resume import RunRecord
from heed.training.run_texts import count_pairs, survey_all, with_validation
from heed.training.step_log import Listener
from heed.training.synthetic_pairs import translate_corpora, write_pairs
from heed.training.train import AnyPath, TrainedRun, train
from heed.untrusted import parse_json

_FOLDER, _TEACHERS = "distilled", "teachers.json"


def distil(
    *teachers: AnyPath,
    out: AnyPath,
    reverse: Sequence[AnyPath] = (),
    preset: str | None = None,
    config: AnyPath | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    cache: AnyPath | None = None,
    listener: Listener | None = None,
) -> TrainedRun:
    """Train a student on the training text of its teachers and on translations of it, as `heed distil` does.

    teachers: run folders of `heed train` with the same vocabulary; the text is that of the first. The student has the
    settings of the first teacher, since one that is regularised less than its teachers overfits their translations.
    reverse: model folders of the opposite direction; each translates the targets, and the student sees its outputs as
    sources of these targets.
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
    for model in reverse:
        _check_opposite(Path(teachers[0]), Path(model))
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
    _record_teachers(text, teachers, reverse)
    valid_files = write_pairs(validation, text, "validation")
    files = write_pairs(training, text, "training")
    files += translate_corpora(teachers, training, text, "translated", listener)
    for number, model in enumerate(reverse, 1):
        files += translate_corpora([model], training, text, f"reverse-{number}", listener, reverse=True)
    weights = [corpus.weight for corpus, _ in training]
    inherited["data"] = {**inherited["data"], "hold_out": None if valid_files else 0}
    return train(
        out=folder,
        pairs=files,
        weight=weights * (2 + len(reverse)),
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


def _check_opposite(teacher: Path, reverse: Path) -> None:
    """Refuse a reverse teacher whose languages are known not to be those of the teacher, exchanged."""
    forth, back = (read_model_folder(folder).run.data for folder in (teacher, reverse))
    languages = forth.source_language, forth.target_language
    found = back.source_language, back.target_language
    if all(languages) and all(found) and found != languages[::-1]:
        raise ConfigError(
            f"{reverse} translates {' to '.join(found)}: a reverse teacher translates {' to '.join(languages[::-1])}, "
            f"since {teacher} translates {' to '.join(languages)}"
        )


def _record_teachers(text: Path, teachers: Sequence[AnyPath], reverse: Sequence[AnyPath]) -> None:
    """Write who translates; on resume they have to be the same, since their files are not written again."""
    names = {
        "teachers": [str(Path(model).absolute()) for model in teachers],
        "reverse": [str(Path(model).absolute()) for model in reverse],
    }
    file = text / _TEACHERS
    if file.exists():
        try:
            begun = parse_json(file.read_bytes())
        except ValueError as error:
            raise FolderError(f"{file} is damaged: {error}. Remove {text} to translate again") from None
        if begun != names:
            raise ConfigError(f"{text.parent} was begun with other teachers: {begun}")
        return
    text.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.writing")
    write_and_sync(new, json_bytes(names))
    new.replace(file)


def _texts(record: RunRecord, data: DataConfig, listener: Listener) -> tuple[SurveyedCorpora, SurveyedCorpora]:
    """The training and the validation text of a teacher, as its own run divided them."""
    training, validation = (survey_all(corpora, listener.work) for corpora in (record.training, record.validation))
    return with_validation(training, validation, data, listener)
