import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import heed
from tests.cli.command import ONE_THREAD, heed_command
from tests.cli.command import heed as command
from tests.serving.folders import make_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hardly trained model: its translations do not matter here."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "pairs.tsv").write_text("a b c\tc b a\nb a\ta b\n" * 20)
    options = ["data.tokenizer=bytes", "data.vocab_size=259", "model.d_model=16", "model.d_ff=16", "model.heads=2"]
    options += ["training.max_steps=2", "training.checkpoint_every=2", "training.tokens_per_batch=50"]
    sets = [word for option in options for word in ("--set", option)]
    run = command("train", "--pairs", f"{folder}/pairs.tsv", "--out", f"{folder}/run", "--cache", f"{folder}/c", *sets)
    assert run.returncode == 0, run.stderr
    return folder / "run"


def translate(model: Path, text: bytes, *files: str) -> subprocess.CompletedProcess[bytes]:
    command = [*heed_command(), "translate", str(model), *files]
    return subprocess.run(command, input=text, capture_output=True, check=False, env=ONE_THREAD)


def test_as_many_lines_come_out_as_went_in_and_empty_ones_stay_empty(model: Path) -> None:
    run = translate(model, "a b\n\nc é 犬\na b".encode())
    assert run.returncode == 0, run.stderr
    lines = run.stdout.decode().split("\n")
    assert len(lines) == 5
    assert lines[1] == lines[4] == ""
    assert lines[0] == lines[3]
    assert all(line.startswith(b"note: ") for line in run.stderr.splitlines())


def test_translate_prints_what_the_library_returns(model: Path, tmp_path: Path) -> None:
    texts = ["a b", "c", "", "b a c"]
    (tmp_path / "in.txt").write_text("".join(text + "\n" for text in texts))
    translator = heed.load(model)
    assert translate(model, b"", str(tmp_path / "in.txt")).stdout.decode().splitlines() == [
        " ".join(text.splitlines()) for text in translator(texts)
    ]
    assert translator("a b") == translator(["x y z", "a b"])[1]


def test_invalid_text_is_an_error_with_its_line_and_what_came_before_is_written(model: Path) -> None:
    run = translate(model, b"a b\n\nc\n\xff\nb\n")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith(b"error: standard input:4: ")
    assert run.stdout == translate(model, b"a b\n\nc\n").stdout
    assert len(run.stdout.splitlines()) == 3


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    run = translate(tmp_path, b"a\n")
    assert run.returncode == 2
    assert run.stderr.decode() == f"error: {tmp_path} is not a model folder: it is empty\n"


def test_columns_and_unknown_keys_pass_through(model: Path, tmp_path: Path) -> None:
    translator = heed.load(model)
    (tmp_path / "in.tsv").write_text("a b\tkept\nc\n")
    output = translate(model, b"", str(tmp_path / "in.tsv")).stdout.decode()
    assert output.splitlines() == [f"a b\tkept\t{_line(translator('a b'))}", f"c\t{_line(translator('c'))}"]
    rows: list[dict[str, object]] = [{"id": 7, "text": "a b", "é": [1, {"x": None}]}, {"text": ""}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--source-key", "text", "--target-key", "out", "--nbest", "2", "--scores", "--alignment"]
    run = translate(model, b"", str(tmp_path / "in.jsonl"), *options)
    (best,) = translator.translate(["a b"])
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert results[0].items() >= rows[0].items()
    assert (results[0]["out"], len(results[0]["alternatives"])) == (translator("a b"), 1)
    assert results[0]["score"] >= results[0]["alternatives"][0]["score"]
    assert results[1] == {"text": "", "out": "", "score": 0.0, "alignment": "", "alternatives": []}
    assert [results[0].get("truncated", False), "truncated" in results[1]] == [best.truncated, False]
    run = translate(model, b'{"text": "a"}\n[1]\n', "--format", "jsonl", "--source-key", "text")
    assert run.returncode == 2
    assert b"standard input:2: expected a JSON object, found list" in run.stderr
    assert len(run.stdout.splitlines()) == 1


def test_numbers_and_escapes_of_json_come_out_as_they_were_written(model: Path) -> None:
    line = r'{"id": 1e400, "x": [1.10, 12345678901234567890123], "y": "\ud800", "target": 0, "source": "a b"}'
    run = translate(model, f"{line}\n".encode(), "--format", "jsonl")
    assert run.returncode == 0, run.stderr
    translation = json.dumps(heed.load(model)("a b"), ensure_ascii=False)
    assert run.stdout.decode().startswith(line.replace('"target": 0', f'"target": {translation}')[:-1])


def _line(text: str) -> str:
    return " ".join(text.splitlines()).replace("\t", " ")


def test_nbest_scores_and_alignment_are_columns(model: Path) -> None:
    run = translate(model, b"a b c\n", "--nbest", "5", "--scores", "--alignment", "--set", "search.max_length=6")
    assert run.returncode == 0, run.stderr
    rows = [line.split("\t") for line in run.stdout.decode().split("\n")[:-1]]
    assert {row[0] for row in rows} == {"1"}
    scores = [float(row[1]) for row in rows]
    assert len(rows) == 5
    assert scores == sorted(scores, reverse=True)
    expected = heed.load(model).translate(["a b c"], search=heed.SearchConfig(beam=5, nbest=5, max_length=6))[0]
    assert scores[0] == pytest.approx(expected.score, abs=1e-4)


def test_rows_of_several_translations_carry_the_number_of_their_line(model: Path) -> None:
    run = translate(model, b"a b c\n\na. A b.\nc\n", "--nbest", "2", "--set", "search.max_length=6", "--lines", "3")
    numbers = [line.split("\t")[0] for line in run.stdout.decode().split("\n")[:-1]]
    assert numbers == ["1", "1", "2", "3", "3", "4", "4"]


def test_split_and_truncated_lines_are_counted_in_notes(model: Path) -> None:
    run = translate(model, b"a b\nA b. C a. B.\n", "--set", "search.max_length=2")
    assert run.stderr.decode().splitlines() == [
        "note: 1 of 2 texts are longer than the training lines and were translated in 3 segments; --split "
        "line translates each line at once",
        "note: 2 of 2 translations reached the length limit (2 tokens) and are truncated; raise it with --set "
        "search.max_length=…",
    ]
    apart = translate(model, b"A b.\nC a.\nB.\n", "--set", "search.max_length=2").stdout.decode().split("\n")
    assert run.stdout.decode().split("\n")[1] == " ".join(apart[:3])
    unsplit = translate(model, b"A b. C a. B.\n", "--set", "search.max_length=2", "--split", "line")
    assert b"parts" not in unsplit.stderr
    assert len(unsplit.stdout) < len(run.stdout)


@pytest.mark.parametrize("lines", ["1", "2", "512"])
def test_sampling_does_not_depend_on_lines_per_batch(model: Path, lines: str) -> None:
    settings = ["--set", "search.sample=true", "--set", "search.max_length=8", "--set", "search.seed=3"]
    texts = ["a b", "a b", "", "c. A."]
    run = translate(model, "".join(f"{text}\n" for text in texts).encode(), *settings, "--lines", lines)
    search = heed.SearchConfig(sample=True, max_length=8, seed=3)
    translations = heed.load(model).translate(texts, search=search, align=False)
    assert run.stdout.decode().split("\n")[:-1] == [
        " ".join(translation.text.splitlines()) for translation in translations
    ]


def test_corrected_words_are_counted_and_shown_also_after_quantising(tmp_path: Path) -> None:
    model, quantized = make_folder(tmp_path / "model", correct_spelling=True), tmp_path / "int8"
    assert command("quantize", str(model), "--out", str(quantized)).returncode == 0
    for folder in (model, quantized):
        run = translate(folder, b"The brid.\nThe bird.\n")
        (note,) = [line for line in run.stderr.decode().splitlines() if "misspelt" in line]
        assert note == (
            "note: 1 word in 1 of 2 texts corrected as misspelt, being rare or absent in the training text: "
            "brid → bird; --set translate.correct_spelling=false translates them as they are"
        )
        lines = run.stdout.splitlines()
        assert lines[0] == lines[1]
        off = command("translate", str(folder), "--text", "The brid.", "--set", "translate.correct_spelling=false")
        assert off.stdout.strip().encode() != lines[0]
        assert "misspelt" not in off.stderr
    (tmp_path / "in.jsonl").write_text('{"source": "The brid."}\n')
    row = json.loads(command("translate", str(model), str(tmp_path / "in.jsonl")).stdout)
    assert row["corrections"] == [{"word": "brid", "replacement": "bird"}]


def test_spelling_is_not_corrected_without_the_words_of_the_training_text(model: Path) -> None:
    run = command("translate", str(model), "--text", "a", "--set", "translate.correct_spelling=true")
    assert run.returncode == 2
    assert "error: translate.correct_spelling = true needs the words of the training text, which" in run.stderr


def test_texts_may_be_arguments(model: Path) -> None:
    translator = heed.load(model)
    run = translate(model, b"", "--text", "a b", "--text", "c")
    assert run.stdout.decode().splitlines() == [_line(translator("a b")), _line(translator("c"))]
    run = translate(model, b"", "in.txt", "--text", "a b")
    assert run.stderr == b"error: expected --text or files to translate, not both: found --text and in.txt\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "search.beem=5"], "unknown setting 'beem' in SearchConfig: did you mean 'beam'?"),
        (["--set", "training.seed=5"], "--set training.…: only search and translate settings are allowed here"),
        (["--set", "beam=5"], "--set beam=5: expected section.name=value, such as search.beam=5"),
        (
            ["--set", "search.top_k=3"],
            "search.top_k = 3 has no effect on beam search: to sample, add --set search.sample",
        ),
        (["--beam", "2", "--nbest", "3"], "nbest = 3 is more than beam = 2"),
    ],
)
def test_invalid_translate_options_are_errors(model: Path, options: list[str], message: str) -> None:
    run = translate(model, b"a\n", *options)
    assert run.returncode == 2
    assert run.stderr.decode().startswith(f"error: {message}")


def test_a_closed_output_pipe_is_no_error(model: Path) -> None:
    command = [sys.executable, "-m", "heed", "translate", str(model), "--lines", "1", "--beam", "1"]
    run = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ONE_THREAD
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdin.write(b"a b\n")
    run.stdin.flush()
    assert run.stdout.readline()  # the first line is written before the input ends
    run.stdout.close()
    run.stdin.write(b"a b\n" * 50)
    run.stdin.close()
    assert all(line.startswith(b"note: ") for line in run.stderr.read().splitlines())
    run.stderr.close()
    assert run.wait(timeout=60) == 0


def test_translate_prompts_for_lines_on_a_terminal(model: Path) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "heed", "translate", str(model)]
    run = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ONE_THREAD)
    os.write(ours, b"a b\n\x04")
    output, messages = run.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert run.returncode == 0
    assert messages.startswith(b"type a line to translate it; end with Ctrl-D")
    assert output.decode() == f"> {_line(heed.load(model)('a b'))}\n> "


def test_score_equals_the_log_probability_of_the_search(model: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("a b\nc\n")
    (tmp_path / "target").write_text("b a\n\n")
    files = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    run = command("score", str(model), *files)
    assert run.returncode == 0, run.stderr
    expected = heed.load(model).score(["a b", "c"], ["b a", ""])
    assert [float(line) for line in run.stdout.splitlines()] == pytest.approx(expected, abs=1e-5)
    assert "2 sentences, 5 tokens:" in run.stderr
    run = command("score", str(model), *files, "--tokens")
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert results[0]["tokens"] == ["b", " ", "a", "⏎"]
    assert sum(results[0]["log_probs"]) == pytest.approx(expected[0], abs=1e-5)
    (tmp_path / "target").write_text("b a\n")
    run = command("score", str(model), *files)
    assert run.returncode == 2
    assert "target ends after line 1" in run.stderr
