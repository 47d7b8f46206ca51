"""What a model was trained on, and example sentences, as read from its folder."""

import json
import math
import os
import re
from pathlib import Path

import pytest

from heed.cli.demo import EXAMPLES
from heed.microworld.entropy import log_probability
from heed.serving.provenance import examples_in, trained_on

ROOT = Path(__file__).parents[2]


def test_examples_come_from_examples_txt_or_else_from_the_newest_training_samples(tmp_path: Path) -> None:
    assert examples_in(tmp_path) == []
    samples = [[f"sentence {number}", "wanted", "got"] for number in (1, 2, 2, 3)]
    lines = [json.dumps({"step": number, "sample": sample}) for number, sample in enumerate(samples)]
    broken = [
        "{",
        "[]",
        '{"sample": 1}',
        '{"sample": []}',
        '{"sample": [1]}',
        '{"loss": 1}',
        json.dumps({"sample": None}),
    ]
    (tmp_path / "journal.jsonl").write_text("\n".join([*broken, *lines, *broken]))
    assert examples_in(tmp_path) == ["sentence 3", "sentence 2", "sentence 1"]
    (tmp_path / "examples.txt").write_text("\n".join(["One.", "", "  Two. ", "x" * 201, *map(str, range(9))]))
    assert examples_in(tmp_path) == ["One.", "Two.", "0", "1", "2", "3"]


def test_unreadable_files_and_invalid_bytes_are_tolerated(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "examples.txt")  # reading it would block
    (tmp_path / "journal.jsonl").write_bytes(b"x" * 1_000_000 + b'\n{"sample": ["\xff"]}\n{"sample": ["end"]}\n')
    assert examples_in(tmp_path) == ["end", "\ufffd"]


@pytest.mark.parametrize("trained", [{}, {"texts": {}}, {"texts": {"training": [{"name": 1, "pairs": 2}, {}]}}])
def test_incomplete_training_records_give_no_provenance(trained: dict[str, object]) -> None:
    assert trained_on(trained) is None


def test_training_texts_are_named_without_their_folders() -> None:
    texts = [{"name": "/home/me/secret/train.tsv", "weight": 1.0, "pairs": 60_000, "digest": "x"}]
    provenance = trained_on({"texts": {"training": texts}, "step": 900})
    assert provenance is not None
    assert provenance.model_dump() == {"texts": [{"name": "train.tsv", "pairs": 60_000}], "steps": 900}


def demo_sentences() -> list[str]:
    """The sentences that README and docs pass to the model of `heed demo`."""
    sentences: list[str] = []
    for page in (ROOT / "README.md", ROOT / "docs" / "looking.md", ROOT / "docs" / "serving.md"):
        text = page.read_text()
        sentences += re.findall(r"(?m)^    (The animal .+)$", text)
        sentences += re.findall(r'heed look runs/demo "([^"]+)"', text)
        sentences += re.findall(r'heed\.load\("runs/demo"\)\.look\("([^"]+)"', text)
        for code in re.findall(r'(?s)heed\.load\("runs/demo"\)(.*?)```', text):
            sentences += re.findall(r'translator(?:\.\w+)?\(\[?"([^"]+)"', code)
        for served in re.findall(r"(?s)heed serve runs/demo\b.*?(?=heed serve|\Z)", text):
            sentences += re.findall(r'"q=([^&]+)&', served)
    return sentences


def test_the_example_sentences_in_the_docs_are_in_the_demo_grammar() -> None:
    sentences = demo_sentences()
    assert len(sentences) >= 8
    for sentence in {*sentences, *EXAMPLES}:
        assert math.isfinite(log_probability(sentence, "english")), sentence
