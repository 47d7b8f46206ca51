import json
from pathlib import Path

import pytest

from tests.cli.command import heed

SETTINGS = ["data.vocab_size=300", "training.max_steps=1", "model.d_model=16", "model.d_ff=16", "model.heads=2"]
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    rows = [{"en": f"a dog {number}", "de": f"ein Hund {number}", "id": number} for number in range(50)]
    rows[7]["de"] = ""
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--pairs", f"{tmp_path}/pairs.jsonl", "--source-key", "en", "--target-key", "de"]


@pytest.mark.parametrize("separate", [False, True])
def test_train_reuses_the_cache_of_prepare(pairs: list[str], tmp_path: Path, separate: bool) -> None:
    options = [*pairs, *SMALL, "--set", f"data.separate_vocabularies={str(separate).lower()}"]
    cache = ["--cache", f"{tmp_path}/cache"]
    prepared = heed("prepare", *options, *cache)
    assert prepared.returncode == 0, prepared.stderr
    assert "training the tokenizer …" in prepared.stderr
    assert "kept 49 of 50: 1 empty, 0 longer than 256 tokens" in prepared.stderr
    assert "tokens written to " in prepared.stderr
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    trained = heed("train", *options, *cache, "--out", f"{tmp_path}/run")
    assert trained.returncode == 0, trained.stderr
    assert "training the tokenizer" not in trained.stderr
    assert "kept 49 of 50" in trained.stderr
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == before


def test_a_damaged_cache_is_rebuilt_with_a_note(pairs: list[str], tmp_path: Path) -> None:
    cache = ["--cache", f"{tmp_path}/cache"]
    first = heed("prepare", *pairs, *SMALL, *cache)
    for path in (tmp_path / "cache").glob("*/target.ids"):
        path.write_bytes(bytes(path.stat().st_size))
    [vocabulary] = (tmp_path / "cache").glob("*.tokenizer.json")
    vocabulary.write_text("{")
    for verb in (["prepare"], ["train", "--out", f"{tmp_path}/run"]):
        again = heed(*verb, *pairs, *SMALL, *cache)
        assert again.returncode == 0, again.stderr
        assert "is damaged: target.ids has a wrong checksum; prepared again" in again.stderr
        assert ("the tokenizer is trained again" in again.stderr) == (verb == ["prepare"])
        assert "kept 49 of 50: 1 empty" in again.stderr
    assert "is damaged" not in first.stderr


def test_other_text_or_settings_are_prepared_anew(pairs: list[str], tmp_path: Path) -> None:
    cache = ["--cache", f"{tmp_path}/cache"]
    assert heed("prepare", *pairs, *SMALL, *cache).returncode == 0
    for changed in ([*pairs, "--set", "data.tokenizer=characters"], ["--pairs", f"{tmp_path}/other.tsv"]):
        (tmp_path / "other.tsv").write_text("a\tb\n" * 9)
        assert "training the tokenizer …" in heed("prepare", *changed, *SMALL, *cache).stderr


def test_a_missing_json_key_is_named(pairs: list[str], tmp_path: Path) -> None:
    run = heed("prepare", *pairs[:4], "--cache", f"{tmp_path}/cache")
    assert run.returncode == 2
    assert f"{tmp_path}/pairs.jsonl:1: no key 'target', the keys are 'en', 'de', 'id'" in run.stderr
    run = heed("prepare", "--cache", f"{tmp_path}/cache")
    assert run.stderr == "error: there is no training text: give --source and --target, --pairs, or --text\n"


def test_prepare_and_train_choose_the_same_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "sums.tsv").write_text("".join(f"{a}+{b}\t{a + b}\n" for a in range(300, 340) for b in range(9)))
    options = ["--pairs", f"{tmp_path}/sums.tsv", *SMALL, "--cache", f"{tmp_path}/cache"]
    choice = "data.tokenizer = characters: 100% of the words in one half of the text are new"
    assert choice in heed("prepare", *options).stderr
    trained = heed("train", *options, "--out", f"{tmp_path}/run")
    assert choice in trained.stderr
    assert "training the tokenizer" not in trained.stderr
