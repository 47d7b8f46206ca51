"""A training run on disk, so that it can be cut off at any moment and go on exactly.

A checkpoint is a model folder plus what exact resume needs:

    optimizer.safetensors    the optimiser's moments, by the name of the weight they belong to; the weights themselves
                             where model.safetensors holds their running mean
    progress.json            step, epoch and position, the best validation so far

There is no random state to keep: everything random is a function of seed, step and batch. Checkpoints lie in
`RUN/checkpoints/step-00001000` and are pruned only after a newer one is safe.
"""

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors.torch import save
from torch import Tensor
from torch.optim import Optimizer

from heed.artifacts.folder import WEIGHTS, put_weights, read_tensors
from heed.artifacts.manifest import Listed, memory_of_this_machine, verify
from heed.artifacts.weights_header import FLOATS, check_weights, read_header
from heed.artifacts.writing import finish_publishing, write_folder
from heed.errors import FolderError, TrainingError
from heed.model.transformer import Transformer
from heed.training.distributed import like, whole
from heed.training.ema import RunningMean
from heed.untrusted import shortened

OPTIMIZER, PROGRESS = "optimizer.safetensors", "progress.json"
_OWN = "weight"  # beside the names of Adam's moments
_NAME = re.compile(r"step-(\d{8,})")
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")

Count = Annotated[int, Field(ge=0, lt=2**53)]


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # for when it is read
    step: Count = 0
    epoch: Count = 0
    position: Count = 0  # batches of the epoch that are done
    mixed: bool = False  # whether batches have sentences of all lengths, which decides what a position means
    best_step: Count | None = None
    best_loss: float | None = None
    best_score: float | None = None  # by the task's own metric
    stale: Count = 0  # validations since the best one
    skipped: Count = 0  # steps whose loss or gradient was not finite
    previous: Count | None = None  # the step of the checkpoint before this one, if it was written down
    compiled: bool | None = None  # whether layers were compiled from the beginning; none: nobody wrote it down
    arithmetic: dict[str, str] = field(default_factory=dict)  # what else the bits depend on (arithmetic.py)

    def validated(self, loss: float, score: float | None, *, by_score: bool) -> "Progress":
        """The progress after a validation; the best is never replaced by a worse."""
        now, best = (score, self.best_score) if by_score else (-loss, self.best_loss and -self.best_loss)
        if now is not None and math.isfinite(now) and (best is None or now > best):
            finite = loss if math.isfinite(loss) else None  # JSON has no other numbers
            return replace(self, best_step=self.step, best_loss=finite, best_score=score, stale=0)
        return replace(self, stale=self.stale + 1)


_PROGRESS = TypeAdapter(Progress)


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step:08d}"


def write_checkpoint(
    run: Path, model_files: Mapping[str, bytes], state: Mapping[str, Tensor], progress: Progress
) -> None:
    """Save everything, whole or not at all."""
    files = {
        **model_files,
        OPTIMIZER: save(dict(state)),
        PROGRESS: (json.dumps(asdict(progress)) + "\n").encode(),
    }
    write_folder(checkpoint_path(run, progress.step), files)


def training_state(
    model: Transformer, optimizer: Optimizer, own: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """What a run remembers of each weight besides its value: Adam's moments; `own`, where a mean is what is used."""
    moments = optimizer.state_dict()["state"]
    state = {
        f"{name}/{moment}": whole(tensor).contiguous()
        for number, (name, _) in enumerate(model.named_parameters())
        for moment, tensor in moments.get(number, {}).items()
    }
    return state | {f"{name}/{_OWN}": whole(weight).contiguous() for name, weight in (own or {}).items()}


def refuse_nonsense(run: Path, step: int, tensors: Mapping[str, Tensor]) -> None:
    """Weights or moments that are not finite are never saved: the last good checkpoint stays the last."""
    if (name := _not_finite(tensors)) is not None:
        raise TrainingError(f"after step {step} {name} is not finite, so nothing was saved; {way_out(run)}")


def way_out(run: Path) -> str:
    """What is left of a run that cannot go on, and what to do. Resuming would repeat what happened."""
    saved = checkpoints(run)
    kept = f"the last good checkpoint is {saved[-1]}, for --init-from" if saved else "there is no checkpoint yet"
    rate = "training.learning_rate (of the paper's schedule: training.learning_rate_factor)"
    return f"{kept}. Begin a new run with a lower {rate}, or with training.clip_norm"


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a number that is not finite."""
    return next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)


def model_part(path: Path) -> dict[str, bytes]:
    """The files of a checkpoint that make it a model folder, without those that only resuming needs."""
    listed = Listed.of(path)
    return {
        name: listed.read(name, memory_of_this_machine()) for name in listed.sums if name not in (OPTIMIZER, PROGRESS)
    }


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first. A folder of another name, `step-00000012-mine`, is not one of them."""
    found = ((_NAME.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*"))
    return [path for _, path in sorted((int(name[1]), path) for name, path in found if name and path.is_dir())]


def newest_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is undamaged, and what was wrong with those after it."""
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


def restore(path: Path, model: Transformer, optimizer: Optimizer, mean: RunningMean | None = None) -> Progress:
    """Put a checkpoint's weights, moments and mean in their places."""
    Listed.of(path).require(WEIGHTS, OPTIMIZER, PROGRESS)
    check_weights(model.config, read_header(path / WEIGHTS), path / WEIGHTS)
    _check_state(path / OPTIMIZER, model, has_own=mean is not None)
    progress = read_progress(path)
    patterns = model.state_dict()
    weights, state = read_tensors(path / WEIGHTS), read_tensors(path / OPTIMIZER)
    if (bad := _not_finite({**weights, **state})) is not None:  # saved by a heed that did not look
        raise FolderError(f"{path}: weight {bad} is not finite. Remove this folder, to go on from an earlier one")
    put_weights(model, {name: like(one, patterns.get(name, one)) for name, one in weights.items()}, path)
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    moments: dict[int, dict[str, Tensor]] = {}
    own: dict[str, Tensor] = {}
    for key, tensor in state.items():
        name, kind = key.rsplit("/", 1)
        one = tensor if tensor.ndim == 0 else like(tensor, patterns[name])
        if kind == _OWN:
            own[name] = one
        else:
            moments.setdefault(numbers[name], {})[kind] = one
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    if mean is not None:
        mean.restart(own)
    return progress


def _check_state(path: Path, model: Transformer, *, has_own: bool) -> None:
    """The optimiser's state must be that of this model. A weight that no gradient has reached has no moments."""
    found = read_header(path)
    expected: dict[str, tuple[int, ...]] = {}
    for name, weight in model.named_parameters():
        shape = tuple(weight.shape)
        if any(f"{name}/{moment}" in found for moment in _MOMENTS):
            expected |= {f"{name}/{moment}": () if moment == "step" else shape for moment in _MOMENTS}
        if has_own:
            expected[f"{name}/{_OWN}"] = shape
    for key in sorted(expected.keys() | found.keys()):
        there, wanted = found.get(key), expected.get(key)
        if there is None or there.shape != wanted or there.dtype not in FLOATS:
            shown = "missing" if there is None else f"{there.dtype} of shape {there.shape}"
            raise FolderError(f"{path}: {shortened(key)} is {shown}, but the run needs floats of shape {wanted}")


def read_progress(path: Path) -> Progress:
    """How far the run of a checkpoint has come."""
    known = Listed.of(path).json(PROGRESS)
    if "best_bleu" in known:  # its name when translating was all there was
        known["best_score"] = known.pop("best_bleu")
    try:
        return _PROGRESS.validate_json(json.dumps(known))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise FolderError(f"{path / PROGRESS}: {where} = {shortened(problem['input'])}: {problem['msg']}") from None


def prune(run: Path, keep_last: int, best_step: Count | None) -> None:
    """Remove old checkpoints: all but the last ones and the best."""
    kept = set(checkpoints(run)[-keep_last:])
    if best_step is not None:
        kept.add(checkpoint_path(run, best_step))
    halves = (run / "checkpoints").glob(".step-*.writing")  # of a run that was killed while it wrote them
    for path in (*checkpoints(run), *halves):
        if path not in kept:
            shutil.rmtree(path)
