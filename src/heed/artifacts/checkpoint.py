"""Training checkpoints on disk: a model folder plus what exact resume needs; several averaged to one model.

    optimizer.safetensors    Adam's moments, by parameter name; with an EMA also the raw weights, since
                             model.safetensors then holds the average
    progress.json            step, epoch and position, the best validation so far

There is no random state to save: everything random is a function of seed, step and batch. Checkpoints are in
`RUN/checkpoints/step-00001000`; old ones are removed only after a newer one is complete. Knows nothing of processes:
whoever shards weights passes the functions that gather and shard a tensor.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors.torch import save
from torch import Tensor
from torch.optim import Optimizer

from heed.artifacts.card import read_card, without_scores
from heed.artifacts.folder import WEIGHTS, model_files, read_model_folder
from heed.artifacts.manifest import Listed, memory_of_this_machine, verify
from heed.artifacts.weights import FLOATS, check_weights, load_weights, read_header, read_tensors
from heed.artifacts.writing import finish_publishing, write_folder
from heed.errors import FolderError, TrainingError
from heed.model.transformer import Transformer
from heed.untrusted import short_repr

OPTIMIZER, PROGRESS = "optimizer.safetensors", "progress.json"
_RAW = "weight"  # beside the names of Adam's moments
_NAME = re.compile(r"step-(\d{8,})")
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")

Count = Annotated[int, Field(ge=0, lt=2**53)]


@dataclass(frozen=True)
class Progress:
    """How far a run has come: `progress.json` of a checkpoint."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # when it is read
    step: Count = 0
    epoch: Count = 0
    position: Count = 0  # batches of the epoch that are done
    mixed: bool = False  # batches hold sentences of all lengths; decides which batch a position is
    best_step: Count | None = None
    best_loss: float | None = None
    best_score: float | None = None  # by the task's metric
    stale: Count = 0  # validations since the best one
    skipped: Count = 0  # steps whose loss or gradient was not finite
    previous: Count | None = None  # step of the checkpoint before this one; none: not recorded
    compiled: bool | None = None  # whether layers were compiled when the run began; none: not recorded
    arithmetic: dict[str, str] = field(default_factory=dict)  # what else decides the bits (`resume.arithmetic_of`)

    def validated(self, loss: float, score: float | None, *, by_score: bool) -> "Progress":
        """The progress after a validation; a worse one never replaces the best."""
        now, best = (score, self.best_score) if by_score else (-loss, self.best_loss and -self.best_loss)
        if now is not None and math.isfinite(now) and (best is None or now > best):
            finite = loss if math.isfinite(loss) else None  # JSON has no other numbers
            return replace(self, best_step=self.step, best_loss=finite, best_score=score, stale=0)
        return replace(self, stale=self.stale + 1)


_PROGRESS = TypeAdapter(Progress)


def _as_is(tensor: Tensor, _pattern: Tensor | None = None) -> Tensor:
    return tensor


def checkpoint_path(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return run / "checkpoints" / f"step-{step:08d}"


def write_checkpoint(
    run: Path, model_files: Mapping[str, bytes], state: Mapping[str, Tensor], progress: Progress
) -> None:
    """Write a checkpoint, complete or not at all."""
    files = {
        **model_files,
        OPTIMIZER: save(dict(state)),
        PROGRESS: (json.dumps(asdict(progress)) + "\n").encode(),
    }
    write_folder(checkpoint_path(run, progress.step), files)


def training_state(
    model: Transformer,
    optimizer: Optimizer,
    raw_weights: Mapping[str, Tensor] | None = None,
    gather: Callable[[Tensor], Tensor] = _as_is,
) -> dict[str, Tensor]:
    """The tensors of `optimizer.safetensors`; gather: makes a sharded tensor whole."""
    moments = optimizer.state_dict()["state"]
    state = {
        f"{name}/{moment}": gather(tensor).contiguous()
        for number, (name, _) in enumerate(model.named_parameters())
        for moment, tensor in moments.get(number, {}).items()
    }
    return state | {f"{name}/{_RAW}": gather(weight).contiguous() for name, weight in (raw_weights or {}).items()}


def require_finite(run: Path, step: int, tensors: Mapping[str, Tensor]) -> None:
    """Refuse to save weights or moments that are not finite: the last good checkpoint stays the newest."""
    if (name := _not_finite(tensors)) is not None:
        raise TrainingError(f"after step {step} {name} is not finite, so nothing was saved; {recovery_hint(run)}")


def recovery_hint(run: Path) -> str:
    """What a run that cannot go on has left, and what to do; resuming would repeat what happened."""
    saved = checkpoints(run)
    kept = f"the last good checkpoint is {saved[-1]}, for --init-from" if saved else "there is no checkpoint yet"
    rate = "training.learning_rate (of the paper's schedule: training.learning_rate_factor)"
    return f"{kept}. Begin a new run with a lower {rate}, or with training.clip_norm"


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a number that is not finite."""
    return next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)


def read_model_files(path: Path) -> dict[str, bytes]:
    """The files of a checkpoint that make it a model folder, without those only resuming needs."""
    listed = Listed.of(path)
    return {
        name: listed.read(name, memory_of_this_machine()) for name in listed.sums if name not in (OPTIMIZER, PROGRESS)
    }


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; a folder of another name, `step-00000012-mine`, is none."""
    found = ((_NAME.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*"))
    return [path for _, path in sorted((int(name[1]), path) for name, path in found if name and path.is_dir())]


def newest_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest undamaged checkpoint, and what is wrong with those after it."""
    complaints: list[str] = []
    for path in reversed(checkpoints(run)):
        try:
            finish_publishing(path)
            verify(path)
        except FolderError as error:
            complaints.append(str(error))
        else:
            return path, complaints
    return None, complaints


def best_checkpoint(run: Path, progress: Progress) -> tuple[Path, str | None]:
    """The checkpoint that becomes a run's model: the best validated one, or the last where nothing was validated.

    If that is gone or damaged, the newest that is not, and a sentence that says so.
    """
    best = checkpoint_path(run, progress.best_step if progress.best_step is not None else progress.step)
    try:
        verify(best)
    except FolderError as error:
        newest, _ = newest_checkpoint(run)
        if newest is None:
            raise
        return newest, f"the best checkpoint cannot be used ({error}): the newest one, {newest.name}, takes its place"
    return best, None


def restore_checkpoint(
    path: Path,
    model: Transformer,
    optimizer: Optimizer,
    *,
    has_ema: bool = False,
    shard_like: Callable[[Tensor, Tensor], Tensor] = _as_is,
) -> tuple[Progress, dict[str, Tensor]]:
    """Load a checkpoint's weights and moments; returns its progress, and with an EMA the raw weights.

    shard_like: shards a whole tensor as another one is.
    """
    Listed.of(path).require(WEIGHTS, OPTIMIZER, PROGRESS)
    check_weights(model.config, read_header(path / WEIGHTS), path / WEIGHTS)
    _check_state(path / OPTIMIZER, model, has_ema=has_ema)
    progress = read_progress(path)
    patterns = model.state_dict()
    weights, state = read_tensors(path / WEIGHTS), read_tensors(path / OPTIMIZER)
    if (bad := _not_finite({**weights, **state})) is not None:  # saved by a heed that did not check
        raise FolderError(f"{path}: weight {bad} is not finite. Remove this folder, to go on from an earlier one")
    load_weights(model, {name: shard_like(one, patterns.get(name, one)) for name, one in weights.items()}, path)
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    moments: dict[int, dict[str, Tensor]] = {}
    raw_weights: dict[str, Tensor] = {}
    for key, tensor in state.items():
        name, kind = key.rsplit("/", 1)
        placed = tensor if tensor.ndim == 0 else shard_like(tensor, patterns[name])
        if kind == _RAW:
            raw_weights[name] = placed
        else:
            moments.setdefault(numbers[name], {})[kind] = placed
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return progress, raw_weights


def _check_state(path: Path, model: Transformer, *, has_ema: bool) -> None:
    """The optimiser's state must be of this model. A weight that never had a gradient has no moments."""
    found = read_header(path)
    expected: dict[str, tuple[int, ...]] = {}
    for name, weight in model.named_parameters():
        shape = tuple(weight.shape)
        if any(f"{name}/{moment}" in found for moment in _MOMENTS):
            expected |= {f"{name}/{moment}": () if moment == "step" else shape for moment in _MOMENTS}
        if has_ema:
            expected[f"{name}/{_RAW}"] = shape
    for key in sorted(expected.keys() | found.keys()):
        there, wanted = found.get(key), expected.get(key)
        if there is None or there.shape != wanted or there.dtype not in FLOATS:
            shown = "missing" if there is None else f"{there.dtype} of shape {there.shape}"
            raise FolderError(f"{path}: {short_repr(key)} is {shown}, but the run needs floats of shape {wanted}")


def read_progress(path: Path) -> Progress:
    """The `progress.json` of a checkpoint."""
    known = Listed.of(path).json(PROGRESS)
    if "best_bleu" in known:  # its name when translating was all there was
        known["best_score"] = known.pop("best_bleu")
    try:
        return _PROGRESS.validate_json(json.dumps(known))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise FolderError(f"{path / PROGRESS}: {where} = {short_repr(problem['input'])}: {problem['msg']}") from None


def prune_checkpoints(run: Path, keep_last: int, best_step: Count | None) -> None:
    """Remove all checkpoints but the last `keep_last` and the best."""
    kept = set(checkpoints(run)[-keep_last:])
    if best_step is not None:
        kept.add(checkpoint_path(run, best_step))
    unfinished = (run / "checkpoints").glob(".step-*.writing")  # a run was killed while writing them
    for path in (*checkpoints(run), *unfinished):
        if path not in kept:
            shutil.rmtree(path)


def last_checkpoints(run: Path) -> list[Path]:
    """The last consecutive checkpoints of a run, oldest first: each records the step of the one before it."""
    found: list[Path] = []
    before: int | None = None
    for path in reversed(checkpoints(run)):
        step = int(path.name.removeprefix("step-"))
        if before is not None and step != before:
            break
        found.append(path)
        before = read_progress(path).previous  # older formats do not record it: then the folders that are there count
    return found[::-1]


def average_checkpoints(run: Path, last: int, out: Path) -> list[Path]:
    """Write the mean of a run's last `last` checkpoints to `out`; returns their folders."""
    paths = last_checkpoints(run)[-last:]
    if not paths:
        raise FolderError(f"{run} is not a run's folder: it has no checkpoints")
    if len(paths) < last:
        others = [path.name for path in checkpoints(run) if path not in paths]
        older = f" ({', '.join(others)}, kept as the best, is not one of the last)" if others else ""
        raise FolderError(
            f"{run} has its last {len(paths)} checkpoints, not {last}{older}: take --last {len(paths)}, or train with "
            "a larger training.keep_last"
        )
    if out.exists():
        raise FolderError(f"{out} is already there: choose another --out")
    total: dict[str, torch.Tensor] = {}
    folders = [read_model_folder(path) for path in paths]
    newest = folders[-1]
    for folder in folders:
        if folder.run.model != newest.run.model:
            raise FolderError(f"{folder.path} and {newest.path} have models of different settings, and no average")
        for name, weight in folder.weights().items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + weight.double()
    mean = {name: (weight / len(paths)).float() for name, weight in total.items()}
    trained = {**newest.trained, "average_of": [path.name for path in paths]}
    card = without_scores(read_card(newest.path))
    card += f"\nIts weights are the mean of {len(paths)} checkpoints: {json.dumps([path.name for path in paths])}.\n"
    write_folder(out, model_files(mean, newest.run, trained, newest.tokenizers, card))
    return paths
