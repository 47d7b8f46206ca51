"""`heed export`, through the real command; what comes out is compared with the peers in tests/interop."""

from pathlib import Path

import pytest

from tests.cli.command import heed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    (folder / "pairs.tsv").write_text("a b c\tc b a\nb a\ta b\n" * 20)
    options = ["data.tokenizer=bytes", "data.vocab_size=259", "model.d_model=16", "model.d_ff=16", "model.heads=2"]
    options += ["training.max_steps=2", "training.tokens_per_batch=50", "model.norm=post", "model.positions=sinusoidal"]
    sets = [word for option in options for word in ("--set", option)]
    process = heed("train", "--pairs", f"{folder}/pairs.tsv", "--out", f"{folder}/run", "--cache", f"{folder}/c", *sets)
    assert process.returncode == 0, process.stderr
    return folder / "run"


def test_export_and_import_keep_the_translations(run: Path, tmp_path: Path) -> None:
    process = heed("export", str(run), "--to", "marian", "--out", f"{tmp_path}/marian")
    assert (process.returncode, process.stderr) == (0, f"{run} exported as marian to {tmp_path}/marian\n")
    process = heed("import", "--from", "marian", f"{tmp_path}/marian", "--out", f"{tmp_path}/again")
    assert process.returncode == 0, process.stderr
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()
    before, after = (heed("translate", str(folder), stdin="a b c\n").stdout for folder in (run, tmp_path / "again"))
    assert before == after


def test_invalid_export_options_are_errors(run: Path, tmp_path: Path) -> None:
    process = heed("export", str(run), "--to", "marion", "--out", f"{tmp_path}/x")
    assert process.returncode == 2
    assert process.stderr.startswith("error: --to marion is not a known format: did you mean 'marian'?")
    process = heed("export", str(run), "--to", "marian", "--out", str(tmp_path))
    assert (process.returncode, process.stderr) == (2, f"error: {tmp_path} already exists: choose another --out\n")
