import shlex
import subprocess

import pytest

from heed.microworld.corpus import DatasetSplit, antecedents, corpus, split_of
from tests.cli.command import heed, heed_command
from tests.microworld.derivations import derivations


def microworld(*arguments: str) -> list[str]:
    """The output lines of `heed microworld`."""
    run = heed("microworld", *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("\n")
    return run.stdout.splitlines()


def test_pairs_are_the_corpus_of_the_given_split_and_seed() -> None:
    pairs = [f"{example.source}\t{example.target}" for example in corpus("valid", 30, seed=7)]
    assert microworld("--split", "valid", "--count", "30", "--seed", "7") == pairs
    assert microworld("--count", "5") == [f"{example.source}\t{example.target}" for example in corpus("train", 5)]


@pytest.mark.parametrize("split", ["train", "test"])
def test_antecedents_come_with_their_label_first(split: DatasetSplit) -> None:
    lines = microworld("--what", "antecedents", "--split", split, "--count", "20", "--seed", "2")
    assert lines == [f"{label}\t{text}" for label, text in antecedents(split, 20, seed=2)]


def test_one_language_is_sampled_with_repetitions() -> None:
    options = ("--split", "test", "--count", "3000", "--seed", "5")
    english, french = microworld("--what", "english", *options), microworld("--what", "french", *options)
    assert len(set(english)) < len(english) == len(french) == 3000
    for source, target in list(zip(english, french, strict=True))[:20]:
        (example,) = derivations(source)
        assert (example.target, split_of(example)) == (target, "test")


def test_microworld_ends_silently_when_the_pipe_closes() -> None:
    command = shlex.join([*heed_command(), "microworld", "--what", "english", "--count", "100000"])
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -n 1"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr, run.stdout.count("\n")) == (0, "", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--what", "german"), "error: Invalid value for '--what': "),
        (("--split", "dev"), "error: Invalid value for '--split': "),
        (("--count", "0"), "error: Invalid value for '--count': Input should be greater than or equal to 1"),
    ],
)
def test_invalid_microworld_options_are_errors(arguments: tuple[str, ...], message: str) -> None:
    run = heed("microworld", *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(message)
