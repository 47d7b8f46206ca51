from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as save_tensors

from heed import ModelConfig, Transformer
from heed.artifacts import writing
from heed.artifacts.checkpoint import (
    Progress,
    checkpoint_path,
    checkpoints,
    newest_checkpoint,
    prune_checkpoints,
    restore_checkpoint,
    training_state,
    write_checkpoint,
)
from heed.artifacts.manifest import verify
from heed.errors import FolderError

CONFIG = ModelConfig(vocab_size=10, d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=8)


def trained() -> tuple[Transformer, torch.optim.Optimizer]:
    model = Transformer(CONFIG)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([[3, 4]]), torch.tensor([[1, 5]])).sum().backward()
    optimizer.step()
    return model, optimizer


def save(run: Path, step: int) -> tuple[Transformer, torch.optim.Optimizer]:
    model, optimizer = trained()
    weights = save_tensors(model.state_dict())
    state = training_state(model, optimizer)
    write_checkpoint(run, {"model.safetensors": weights}, state, Progress(step=step, best_loss=1.5))
    return model, optimizer


def test_a_restored_run_has_the_same_weights_moments_and_progress(tmp_path: Path) -> None:
    model, optimizer = save(tmp_path, 7)
    restored, restored_optimizer = trained()
    progress, raw_weights = restore_checkpoint(checkpoint_path(tmp_path, 7), restored, restored_optimizer)
    assert raw_weights == {}
    assert progress == Progress(step=7, best_loss=1.5)
    for name, weight in model.state_dict().items():
        assert torch.equal(restored.state_dict()[name], weight)
    before, after = optimizer.state_dict(), restored_optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number, moments in before["state"].items():
        for name, moment in moments.items():
            assert torch.equal(after["state"][number][name], moment), name


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(tmp_path: Path, file: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = checkpoint_path(tmp_path, 2) / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    newest, complaints = newest_checkpoint(tmp_path)
    assert newest == checkpoint_path(tmp_path, 1)
    assert len(complaints) == 1
    assert "damaged" in complaints[0] or "format" in complaints[0] or "missing" in complaints[0]


def test_a_missing_file_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (checkpoint_path(tmp_path, 1) / "progress.json").unlink()
    newest, complaints = newest_checkpoint(tmp_path)
    assert newest is None
    assert complaints == [f"{checkpoint_path(tmp_path, 1)} is damaged: progress.json is missing"]


@pytest.mark.parametrize("write", range(5))
def test_a_crash_while_writing_leaves_the_old_checkpoint_and_no_incomplete_one(
    tmp_path: Path, write: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    write_and_sync = writing.write_and_sync
    written: list[Path] = []

    def crash(path: Path, content: bytes) -> None:
        if len(written) == write:
            path.write_bytes(content[: len(content) // 2])
            raise OSError("no space left on device")
        written.append(path)
        write_and_sync(path, content)

    monkeypatch.setattr(writing, "write_and_sync", crash)
    if write < 4:
        with pytest.raises(FolderError, match=r"step-00000002 cannot be written: no space left"):
            save(tmp_path, 2)
    else:
        save(tmp_path, 2)
    monkeypatch.undo()
    newest, complaints = newest_checkpoint(tmp_path)
    assert newest == checkpoint_path(tmp_path, 1 if write < 4 else 2)
    assert complaints == []
    save(tmp_path, 3)
    assert newest_checkpoint(tmp_path)[0] == checkpoint_path(tmp_path, 3)


def test_pruning_keeps_the_last_checkpoints_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step)
    prune_checkpoints(tmp_path, keep_last=2, best_step=2, step=5)
    assert checkpoints(tmp_path) == [checkpoint_path(tmp_path, step) for step in (2, 4, 5)]


def test_a_damaged_checkpoint_never_takes_the_place_of_one_written_after_resuming_before_it(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 9)
    (checkpoint_path(tmp_path, 9) / "progress.json").write_text("{}")
    save(tmp_path, 5)  # resumed after step 2
    prune_checkpoints(tmp_path, keep_last=1, best_step=None, step=5)
    assert newest_checkpoint(tmp_path)[0] == checkpoint_path(tmp_path, 5)


def test_a_worse_or_nan_loss_never_replaces_the_best() -> None:
    progress = replace(Progress(), step=1).validated(2.0, None, by_score=False)
    progress = replace(progress, step=2).validated(3.0, None, by_score=False)
    assert (progress.best_step, progress.best_loss, progress.stale) == (1, 2.0, 1)
    assert Progress(step=1).validated(float("nan"), None, by_score=False).best_loss is None
    progress = replace(progress, step=3).validated(1.0, None, by_score=False)
    assert (progress.best_step, progress.best_loss, progress.stale) == (3, 1.0, 0)


def test_small_improvements_make_a_new_best_but_count_for_patience_only_together() -> None:
    progress = Progress()
    for step, (loss, best, stale) in enumerate(((0.010, 1, 0), (0.008, 2, 1), (0.006, 3, 2), (0.0049, 4, 0)), 1):
        progress = replace(progress, step=step).validated(loss, None, by_score=False, min_delta=0.005)
        assert (progress.best_step, progress.best_loss, progress.stale) == (best, loss, stale)
    old = Progress(step=2, best_step=1, best_loss=1.0)  # of a version that did not record it
    assert old.validated(0.999, None, by_score=False, min_delta=0.005).stale == 1


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, 1)
    other = Transformer(CONFIG.model_copy(update={"d_ff": 12}))
    with pytest.raises(FolderError, match=r"narrow.weight' has shape \(8, 8\), but the settings require \(8, 12\)"):
        restore_checkpoint(checkpoint_path(tmp_path, 1), other, torch.optim.Adam(other.parameters()))


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    writing.write_folder(tmp_path / "model", {"a": b"1"})
    manifest = tmp_path / "model" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(FolderError, match="has format 9, but this version of heed reads format 1: update heed"):
        verify(tmp_path / "model")
    with pytest.raises(FolderError, match=r"is not a model folder: it has no manifest\.json; did you mean .*/model\?"):
        verify(tmp_path)
    save(tmp_path, 1)
    with pytest.raises(FolderError, match=r"not finished: continue with heed train --resume .*/step-00000001$"):
        verify(tmp_path)


def test_pruning_keeps_folders_that_are_not_named_like_checkpoints(tmp_path: Path) -> None:
    other = tmp_path / "checkpoints" / "step-00000012-mine"
    other.mkdir(parents=True)
    (other.parent / "step-00000013").write_text("nor is a file")
    for step in (1, 2, 100_000_000):
        save(tmp_path, step)
    prune_checkpoints(tmp_path, keep_last=1, best_step=None, step=100_000_000)
    assert checkpoints(tmp_path) == [checkpoint_path(tmp_path, 100_000_000)]
    assert other.is_dir()


def test_pruning_removes_partly_written_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".step-00000001.writing").mkdir(parents=True)
    save(tmp_path, 2)
    prune_checkpoints(tmp_path, keep_last=1, best_step=None, step=2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_checkpoint_with_nan_weights_is_refused_with_the_remedy(tmp_path: Path) -> None:
    model, optimizer = trained()
    with torch.no_grad():
        model.vocabulary.embedding.weight[3] = float("nan")
    files = {"model.safetensors": save_tensors(model.state_dict())}
    write_checkpoint(tmp_path, files, training_state(model, optimizer), Progress(step=1))
    with pytest.raises(FolderError, match=r"embedding.weight is not finite. Remove this folder"):
        restore_checkpoint(checkpoint_path(tmp_path, 1), *trained())
