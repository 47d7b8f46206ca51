"""Training checkpoints: model folders with optimiser state and progress, for exact resume and for averaging.

    optimizer.safetensors    Adam's moments, by parameter name; with an EMA also the raw weights, since
                             model.safetensors then holds the average
    progress.json            step, epoch and position, the best validation so far

No random state is saved: everything random is a function of seed, step and batch. Checkpoints are in
`RUN/checkpoints/step-00001000`; old ones are removed only after a newer one is complete. Knows nothing of distributed
training: with sharded weights the caller passes the functions that gather and shard a tensor.
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
from heed.artifacts.manifest import Manifest, physical_memory, verify
from heed.artifacts.tensors import as_tensors, load_weights, read_tensors
from heed.artifacts.weights import FLOATS, check_weights, read_header
from heed.artifacts.writing import finish_publishing, write_folder
from heed.errors import FolderError, TrainingError
from heed.model.transformer import Transformer
from heed.untrusted import short_repr

OPTIMIZER, PROGRESS = "optimizer.safetensors", "progress.json"
_RAW = "weight"  # suffix of raw weights, beside those of Adam's moments
_NAME = re.compile(r"step-(\d{8,})")
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")

Count = Annotated[int, Field(ge=0, lt=2**53)]


@dataclass(frozen=True)
class Progress:
    """The progress of a run: `progress.json` of a checkpoint."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # for reading
    step: Count = 0
    epoch: Count = 0
    position: Count = 0  # batches of the epoch already trained on
    mixed: bool = False  # batches mix sentences of all lengths; determines the order of batches
    best_step: Count | None = None
    best_loss: float | None = None
    best_score: float | None = None  # the task's metric at the best step
    stale: Count = 0  # validations since the last improvement that counts for patience
    improved_to: float | None = None  # by that improvement: the score, or the negative loss
    exact: Count = 0  # validations in a row whose outputs all equal their references
    skipped: Count = 0  # steps whose loss or gradient was not finite
    previous: Count | None = None  # step of the checkpoint before this one; None: not recorded
    compiled: bool | None = None  # whether the layers were compiled when the run began; None: not recorded
    arithmetic: dict[str, str] = field(default_factory=dict)  # what else affects the bits (`resume.arithmetic_of`)

    def validated(
        self, loss: float, score: float | None, *, by_score: bool, min_delta: float = 0.0, is_exact: bool = False
    ) -> "Progress":
        """The progress after a validation: a new best step, or one more validation without improvement.

        min_delta: a smaller improvement makes a new best step, but does not count for patience. is_exact: whether all
        outputs equal their references.
        """
        progress = replace(self, stale=self.stale + 1, exact=self.exact + 1 if is_exact else 0)
        new, best = (score, self.best_score) if by_score else (-loss, self.best_loss and -self.best_loss)
        if new is None or not math.isfinite(new):
            return progress
        counted = best if self.improved_to is None else self.improved_to
        if counted is None or new > counted + min_delta:
            progress = replace(progress, stale=0, improved_to=new)
        if best is None or new > best:
            finite_loss = loss if math.isfinite(loss) else None  # JSON has neither inf nor nan
            progress = replace(progress, best_step=self.step, best_loss=finite_loss, best_score=score)
        return progress


_PROGRESS = TypeAdapter(Progress)


def _identity(tensor: Tensor, _like: Tensor | None = None) -> Tensor:
    return tensor


def checkpoint_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def write_checkpoint(
    run: Path, model_files: Mapping[str, bytes], state: Mapping[str, Tensor], progress: Progress
) -> None:
    """Write the checkpoint folder of this step, which is then complete or absent."""
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
    gather: Callable[[Tensor], Tensor] = _identity,
) -> dict[str, Tensor]:
    """The tensors of `optimizer.safetensors`. gather: assembles a full tensor from its shards."""
    moments = optimizer.state_dict()["state"]
    state = {
        f"{name}/{moment}": gather(tensor).contiguous()
        for index, (name, _) in enumerate(model.named_parameters())
        for moment, tensor in moments.get(index, {}).items()
    }
    return state | {f"{name}/{_RAW}": gather(weight).contiguous() for name, weight in (raw_weights or {}).items()}


def require_finite(run: Path, step: int, tensors: Mapping[str, Tensor]) -> None:
    """Raise instead of saving weights or moments that are not finite, so that the newest checkpoint is usable."""
    if (name := _not_finite(tensors)) is not None:
        raise TrainingError(f"{name} is not finite after step {step}, so nothing was saved; {recovery_hint(run)}")


def recovery_hint(run: Path) -> str:
    """The end of an error message about a diverged run: what to do, since resuming would diverge again."""
    saved = checkpoints(run)
    last = f"the last good checkpoint is {saved[-1]}, for --init-from" if saved else "there is no checkpoint yet"
    rate = "training.learning_rate (for the paper's schedule: training.learning_rate_factor)"
    return f"{last}. Start a new run with a lower {rate}, or with training.clip_norm"


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that is not finite."""
    return next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)


def read_model_files(path: Path) -> dict[str, bytes]:
    """The model folder's files of a checkpoint, without those that only resuming needs."""
    manifest = Manifest.load(path)
    return {
        name: manifest.read_file(name, physical_memory()) for name in manifest.sums if name not in (OPTIMIZER, PROGRESS)
    }


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; folders with other names, such as `step-00000012-mine`, are ignored."""
    matches = ((_NAME.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in matches if match and path.is_dir())]


def newest_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest undamaged checkpoint, and the errors of the damaged ones after it."""
    errors: list[str] = []
    for path in reversed(checkpoints(run)):
        try:
            finish_publishing(path)
            verify(path)
        except FolderError as error:
            errors.append(str(error))
        else:
            return path, errors
    return None, errors


def best_checkpoint(run: Path, progress: Progress) -> tuple[Path, str | None]:
    """The checkpoint that becomes a run's model: the best by validation, or the last if there was no validation.

    If that is missing or damaged: the newest undamaged one, and a warning.
    """
    best = checkpoint_path(run, progress.best_step if progress.best_step is not None else progress.step)
    try:
        verify(best)
    except FolderError as error:
        newest, _ = newest_checkpoint(run)
        if newest is None:
            raise
        return newest, f"the best checkpoint cannot be used ({error}): the newest one, {newest.name}, is used instead"
    return best, None


def restore_checkpoint(
    path: Path,
    model: Transformer,
    optimizer: Optimizer,
    *,
    has_ema: bool = False,
    shard_like: Callable[[Tensor, Tensor], Tensor] = _identity,
) -> tuple[Progress, dict[str, Tensor]]:
    """Load a checkpoint into model and optimiser; returns its progress and, with an EMA, the raw weights.

    shard_like: shards a full tensor like another one.
    """
    Manifest.load(path).require(WEIGHTS, OPTIMIZER, PROGRESS)
    check_weights(model.config, read_header(path / WEIGHTS), path / WEIGHTS)
    _check_state(path / OPTIMIZER, model, has_ema=has_ema)
    progress = read_progress(path)
    targets = model.state_dict()
    weights, state = read_tensors(path / WEIGHTS), read_tensors(path / OPTIMIZER)
    if (name := _not_finite({**weights, **state})) is not None:  # written by a version that did not check
        raise FolderError(f"{path}: weight {name} is not finite. Remove this folder to resume from an earlier one")
    load_weights(model, {name: shard_like(weight, targets.get(name, weight)) for name, weight in weights.items()}, path)
    indices = {name: index for index, (name, _) in enumerate(model.named_parameters())}
    moments: dict[int, dict[str, Tensor]] = {}
    raw_weights: dict[str, Tensor] = {}
    for key, tensor in state.items():
        name, kind = key.rsplit("/", 1)
        shard = tensor if tensor.ndim == 0 else shard_like(tensor, targets[name])
        if kind == _RAW:
            raw_weights[name] = shard
        else:
            moments.setdefault(indices[name], {})[kind] = shard
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return progress, raw_weights


def _check_state(path: Path, model: Transformer, *, has_ema: bool) -> None:
    """Check that the optimiser state is this model's. A weight that never had a gradient has no moments."""
    header = read_header(path)
    expected: dict[str, tuple[int, ...]] = {}
    for name, weight in model.named_parameters():
        shape = tuple(weight.shape)
        if any(f"{name}/{moment}" in header for moment in _MOMENTS):
            expected |= {f"{name}/{moment}": () if moment == "step" else shape for moment in _MOMENTS}
        if has_ema:
            expected[f"{name}/{_RAW}"] = shape
    for key in sorted(expected.keys() | header.keys()):
        tensor, required = header.get(key), expected.get(key)
        if tensor is None or tensor.shape != required or tensor.dtype not in FLOATS:
            shown = "missing" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
            raise FolderError(f"{path}: {short_repr(key)} is {shown}, but the run needs floats of shape {required}")


def read_progress(path: Path) -> Progress:
    progress = Manifest.load(path).read_json(PROGRESS)
    if "best_bleu" in progress:  # the old name of best_score
        progress["best_score"] = progress.pop("best_bleu")
    try:
        return _PROGRESS.validate_json(json.dumps(progress))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise FolderError(f"{path / PROGRESS}: {key} = {short_repr(problem['input'])}: {problem['msg']}") from None


def prune_checkpoints(run: Path, keep_last: int, best_step: Count | None, step: Count) -> None:
    """Remove all checkpoints up to this step except the last `keep_last` and the best.

    Later ones were damaged when the run was resumed: they must not take the place of those written since.
    """
    written = [path for path in checkpoints(run) if step_of(path) <= step]
    kept = set(written[-keep_last:])
    if best_step is not None:
        kept.add(checkpoint_path(run, best_step))
    unfinished = (run / "checkpoints").glob(".step-*.writing")  # by a run that was killed
    for path in (*written, *unfinished):
        if path not in kept:
            shutil.rmtree(path)


def last_checkpoints(run: Path) -> list[Path]:
    """The last consecutive checkpoints of a run, oldest first: each records the step of the one before it."""
    paths: list[Path] = []
    before: int | None = None
    for path in reversed(checkpoints(run)):
        step = step_of(path)
        if before is not None and step != before:
            break
        paths.append(path)
        before = read_progress(path).previous  # None in older formats: then every folder counts
    return paths[::-1]


def average_checkpoints(run: Path, last: int, out: Path) -> list[Path]:
    """Average the weights of a run's last `last` checkpoints into the model folder `out`; returns their folders."""
    paths = last_checkpoints(run)[-last:]
    if not paths:
        raise FolderError(f"{run} has no checkpoints: expected the folder of a training run")
    if len(paths) < last:
        others = [path.name for path in checkpoints(run) if path not in paths]
        older = f" ({', '.join(others)}, kept as the best, is not consecutive)" if others else ""
        raise FolderError(
            f"{run} has {len(paths)} consecutive checkpoints, not {last}{older}: use --last {len(paths)}, or train "
            "with a larger training.keep_last"
        )
    if out.exists():
        raise FolderError(f"{out} already exists: choose another --out")
    total: dict[str, torch.Tensor] = {}
    folders = [read_model_folder(path) for path in paths]
    newest = folders[-1]
    for folder in folders:
        if folder.run.model != newest.run.model:
            raise FolderError(f"{folder.path} and {newest.path} have different model settings and cannot be averaged")
        for name, weight in as_tensors(folder.weights()).items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + weight.double()
    mean = {name: (weight / len(paths)).float() for name, weight in total.items()}
    trained = {**newest.trained, "average_of": [path.name for path in paths]}
    card = without_scores(read_card(newest.path))
    card += f"\nIts weights are the mean of {len(paths)} checkpoints: {json.dumps([path.name for path in paths])}.\n"
    write_folder(out, model_files(mean, newest.run, trained, newest.tokenizers, card, newest.lexicon))
    return paths
