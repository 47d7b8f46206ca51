"""Checks whether a run can resume from the checkpoint in its folder, and reports what has changed since.

Enters: a run's folder, settings and texts. Leaves: the checkpoint to resume from and notes, or an error: texts, and
settings that decide what is trained, must be those the run began with. Knows no tensors.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from heed.artifacts.checkpoint import newest_checkpoint, read_progress
from heed.artifacts.folder import ModelFolder
from heed.artifacts.writing import MANIFEST
from heed.backends.machine import cpu_instructions
from heed.backends.select import TrainingPlan
from heed.config import RunConfig
from heed.errors import ConfigError, DataError, FolderError
from heed.text.corpus import Corpus
from heed.text.corpus_defaults import CHOSEN
from heed.training.optimizer import learning_rate
from heed.training.presets import NestedSettings
from heed.training.step_log import Listener
from heed.untrusted import parse_json, read_regular
from heed.version import __version__

_FILE = "run.json"
_PATHS = ("source", "target", "pairs", "text")


@dataclass(frozen=True)
class RunRecord:
    """`run.json`: a run's texts and settings, the model it was initialised from, and the cache of prepared text."""

    training: list[Corpus]
    validation: list[Corpus]
    settings: NestedSettings
    init_from: Path | None
    cache: Path

    def write(self, folder: Path) -> None:
        """Write `run.json`; paths become absolute, since a run may be resumed from another folder."""
        record = {
            "training": _described(self.training),
            "validation": _described(self.validation),
            "settings": self.settings,
            "init_from": None if self.init_from is None else str(self.init_from.absolute()),
            "cache": str(self.cache.absolute()),
        }
        new = folder / f".{_FILE}.writing"
        try:
            new.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            new.replace(folder / _FILE)
        except OSError as error:
            raise FolderError(f"{folder / _FILE} cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Read `run.json` of a run's folder."""
        file = folder / _FILE
        try:
            record = parse_json(read_regular(file))
            training, validation = ([Corpus(**item) for item in record[name]] for name in ("training", "validation"))
            init_from = None if record["init_from"] is None else Path(record["init_from"])
            return cls(training, validation, dict(record["settings"]), init_from, Path(record["cache"]))
        except OSError as error:
            raise DataError(
                f"there is no training text, and no run to resume ({file}: {error.strerror}): give --source and "
                "--target, --pairs, or --text"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"{file} is damaged: {error!r}. Give all arguments of the run again") from None


def recorded_choices(folder: Path) -> NestedSettings:
    """The settings in `run.json` that were chosen for its corpus; none where that file is missing or damaged."""
    try:
        settings = RunRecord.read(folder).settings
    except (DataError, FolderError):
        return {}
    return {
        section: {name: settings[section][name] for name in names if name in settings.get(section, {})}
        for section, names in CHOSEN.items()
    }


def _described(corpora: Sequence[Corpus]) -> list[dict[str, object]]:
    return [
        {name: os.path.abspath(value) if name in _PATHS and value else value for name, value in asdict(corpus).items()}
        for corpus in corpora
    ]


def arithmetic_of(plan: TrainingPlan, device: torch.device, processes: int) -> dict[str, str]:
    """What the exact weights of a run depend on besides its settings: versions, device and kernels, by name."""
    facts = {"heed": __version__, "torch": torch.__version__, "processes": str(processes)}
    facts["layers"] = "compiled by torch" if plan.is_compiled else "as they are"
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
        facts["precision"], facts["steps"] = plan.choice.dtype, "captured" if plan.is_captured else "not captured"
        return facts
    facts["device"] = device.type
    facts["threads"] = str(torch.get_num_threads())
    facts["instructions"] = cpu_instructions()
    facts["kernels"] = plan.kernels
    return facts


def arithmetic_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One sentence per difference of `arithmetic_of`; none for checkpoints of old versions, which did not record it."""
    if not before:
        return []
    return [
        f"{name}: {before.get(name, 'none')} before, {now.get(name, 'none')} now, so the resumed run is not bit-exact"
        + (f" (with OMP_NUM_THREADS={before[name]} it is)" if name == "threads" and name in before else "")
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


# Settings that may change when a run is resumed: they decide how long it trains, what it keeps and over how many
# processes a step is distributed, not what is trained.
_MAY_CHANGE = (
    "training.max_steps",
    "training.max_minutes",
    "training.keep_last",
    "training.patience",
    "training.min_delta",
    "training.stop_when_exact",
    "training.accumulate",
    "training.shard",
    "data.source_language",
    "data.target_language",
    "search.",
    "translate.",
)


def check_new_folder(folder: Path) -> None:
    """Raise where a new run cannot begin in `folder`; creates nothing."""
    if folder.is_dir():
        _refuse_to_overwrite(folder, newest_checkpoint(folder)[0])
        parent = folder
    else:
        parent = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
        if not parent.is_dir():
            what = "is" if parent == folder else f"cannot be created: {parent} is"
            raise FolderError(f"{folder} {what} a file: expected a folder to write the run to")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise FolderError(f"{folder} cannot be written to: no permission to write to {parent}; choose another folder")


def _refuse_to_overwrite(folder: Path, checkpoint: Path | None) -> None:
    if checkpoint is not None:
        raise FolderError(
            f"{folder} already holds a run, up to {checkpoint.name}: resume it (--resume, or resume=True), or choose "
            "another output folder"
        )


def checkpoint_of(folder: Path, listener: Listener, *, resume: bool) -> Path | None:
    """The checkpoint to resume from, if there is one; raises rather than overwrite a run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder} cannot be created: {error.strerror}") from None
    checkpoint, problems = newest_checkpoint(folder)
    if not resume:
        _refuse_to_overwrite(folder, checkpoint)
    if checkpoint is None and problems:
        raise FolderError(
            f"{folder} has no checkpoint to resume from: {'; '.join(problems)}. Remove them, or choose another output "
            "folder"
        )
    if checkpoint is None and (folder / MANIFEST).exists():
        raise FolderError(
            f"{folder} already holds a model, and no checkpoint to resume from: choose another output folder; to start "
            "from this model's weights there, use --init-from, or init_from="
        )
    if checkpoint is None and resume:
        listener.note(f"there is no checkpoint in {folder} yet: training starts from the beginning")
    for problem in problems:
        listener.warning(problem)
    return checkpoint


def differences(saved: ModelFolder, config: RunConfig, texts: dict[str, list[dict[str, Any]]]) -> list[str]:
    """One sentence per setting that differs from the checkpoint's; raises for those that must not change."""
    old, new = dict(_flat(saved.run.model_dump(mode="json"))), dict(_flat(config.model_dump(mode="json")))
    changed = {
        name: f"{name} was {_shown(old.get(name))} and is now {_shown(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }
    refused = [change for name, change in changed.items() if not name.startswith(_MAY_CHANGE)]
    refused += _changed_texts(saved.trained.get("texts", {}), texts)
    if refused:
        raise ConfigError("\n  ".join(("a resumed run keeps its settings and texts, but", *refused)))
    if "training.max_steps" in changed and config.training.schedule == "cosine":
        step = read_progress(saved.path).step + 1
        before, now = (learning_rate(step, run.training, run.model.d_model) for run in (saved.run, config))
        changed["training.max_steps"] += (
            f", where the cosine schedule ends: the learning rate of step {step} is {now:.3g} instead of {before:.3g}"
        )
    return list(changed.values())


def _changed_texts(
    before: Mapping[str, Sequence[Mapping[str, Any]]], now: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[str]:
    """One sentence per split whose text has changed. Files may have been renamed."""
    for split in sorted(before.keys() | now.keys()):
        old, new = before.get(split, ()), now.get(split, ())
        facts = [[{**text, "name": ""} for text in texts] for texts in (old, new)]
        if facts[0] != facts[1]:
            was, is_now = (", ".join(map(_described_text, texts)) or "none" for texts in (old, new))
            kept = was == is_now
            yield (
                f"the content of the {split} text {was} has changed"
                if kept
                else (f"the {split} text was {was} and is now {is_now}")
            )


def _described_text(text: Mapping[str, Any]) -> str:
    weight = "" if text.get("weight", 1) == 1 else f", weight {text['weight']:g}"
    return f"{text.get('name')} ({text.get('pairs'):,} pairs{weight})"


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
        case list():
            for number, inner in enumerate(value):
                yield from _flat(inner, f"{prefix}.{number}")
        case _:
            yield prefix, value
