"""May a run go on from the checkpoint in its folder, and what is different now?

Enters: a run's folder, settings and texts. Leaves: the checkpoint to go on from and what a person should be told, or an
error: settings that decide what is learnt, and texts, must be those of the beginning. Knows no tensors.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heed.config import RunConfig
from heed.errors import ConfigError, FolderError
from heed.model.folder import ModelFolder
from heed.model.writing import MANIFEST
from heed.training.checkpoint import newest_checkpoint, read_progress
from heed.training.schedule import learning_rate

# Settings that may differ when a run is resumed: they change how long it goes on, what it keeps and over how many
# processes a step is shared out, not what it learns.
_MAY_CHANGE = (
    "training.max_steps",
    "training.keep_last",
    "training.patience",
    "training.accumulate",
    "training.shard",
    "data.source_language",
    "data.target_language",
    "search.",
    "translate.",
)


def checkpoint_of(folder: Path, *, resume: bool) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, if there is one, and notes. A run is never overwritten by mistake."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder}: {error.strerror}") from None
    checkpoint, complaints = newest_checkpoint(folder)
    if checkpoint is not None and not resume:
        raise FolderError(
            f"{folder} already holds a run, up to {checkpoint.name}: add --resume, or choose another --out"
        )
    if checkpoint is None and complaints:
        raise FolderError(
            f"{folder} has no checkpoint to resume from: {'; '.join(complaints)}. Remove them, or choose another --out"
        )
    if checkpoint is None and (folder / MANIFEST).exists():
        raise FolderError(
            f"{folder} already holds a model, and no checkpoint to go on from: choose another --out; "
            f"--init-from {folder} begins with its weights"
        )
    if checkpoint is None and resume:
        return None, [f"there is no checkpoint in {folder} yet: training starts from the beginning"]
    return checkpoint, complaints


def differences(saved: ModelFolder, config: RunConfig, texts: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What is different from a checkpoint and may be, one note each; what may not be is an error that lists it."""
    old = dict(_flat({**saved.run.model_dump(mode="json"), "texts": saved.trained.get("texts", {})}))
    new = dict(_flat({**config.model_dump(mode="json"), "texts": texts}))
    changed = {
        name: f"{name} was {_shown(old.get(name))} and is now {_shown(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and not name.endswith(".name")
    }
    refused = [what for name, what in changed.items() if not name.startswith(_MAY_CHANGE)]
    if refused:
        raise ConfigError("\n  ".join(("--resume goes on with the same settings and texts, but", *refused)))
    if "training.max_steps" in changed and config.training.schedule == "cosine":
        step = read_progress(saved.path).step + 1
        before, now = (learning_rate(step, one.training, one.model.d_model) for one in (saved.run, config))
        changed["training.max_steps"] += (
            f", where the cosine schedule ends: the learning rate of step {step} is {now:.3g} instead of {before:.3g}"
        )
    return list(changed.values())


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
