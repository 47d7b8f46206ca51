"""How much BLEU a model loses when its input is not as tidy as its training text.

    python benchmarks/robustness.py MODEL SOURCE REFERENCE [--seed 1]

Each perturbation changes the sources, and where a faithful translation changes with them, the references. BLEU is
sacreBLEU's, lowercased, so that only the words count. "Single word" has no reference: its row is the share of outputs
of at most three words. Prints a Markdown table.
"""

import argparse
import random
import string
from collections.abc import Callable, Sequence
from pathlib import Path

import heed
from heed.evaluation.metrics import bleu

Lines = Sequence[str]
Perturbed = tuple[Lines, Lines]  # sources and references
TYPO_RATE = 0.05  # of the letters
MAX_SINGLE_WORDS = 3


def with_sources(change: Callable[[str], str]) -> Callable[[Lines, Lines], Perturbed]:
    """A perturbation of each source alone."""
    return lambda sources, references: ([change(source) for source in sources], references)


def without_stop(sources: Lines, references: Lines) -> Perturbed:
    return [source.rstrip(" .") for source in sources], [reference.rstrip(" .") for reference in references]


def two_per_line(sources: Lines, references: Lines) -> Perturbed:
    pairs = range(0, len(sources) - 1, 2)
    return tuple([f"{lines[first]} {lines[first + 1]}" for first in pairs] for lines in (sources, references))  # type: ignore[return-value]


def misspelt(draw: random.Random) -> Callable[[str], str]:
    """Changes a share of the letters: deleted, doubled, replaced or swapped with the next."""

    def misspell(source: str) -> str:
        letters = list(source)
        for index, letter in enumerate(source[:-1]):
            if letter.isalpha() and draw.random() < TYPO_RATE:
                edit = draw.choice(("delete", "double", "replace", "swap"))
                if edit == "swap" and letters[index] and letters[index + 1]:
                    letters[index], letters[index + 1] = letters[index + 1], letters[index]
                else:
                    replacement = draw.choice(string.ascii_lowercase)
                    letters[index] = {"delete": "", "double": letter * 2}.get(edit, replacement)
        return "".join(letters)

    return misspell


def spaced(draw: random.Random) -> Callable[[str], str]:
    return lambda source: "".join(" " * draw.randint(1, 3) if letter == " " else letter for letter in f" {source}  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sources, references = (path.read_text().splitlines() for path in (arguments.source, arguments.reference))
    draw, translator = random.Random(arguments.seed), heed.load(arguments.model)
    perturbations: dict[str, Callable[[Lines, Lines], Perturbed]] = {
        "clean": with_sources(str),
        "ALL CAPS": with_sources(str.upper),
        "Title Case": with_sources(string.capwords),
        "lower case": with_sources(str.lower),
        "no final stop": without_stop,
        "two sentences per line": two_per_line,
        "extra spaces": with_sources(spaced(draw)),
        "5 % typos": with_sources(misspelt(draw)),
    }

    def score(perturbed: Perturbed) -> float:
        outputs = [output.text for output in translator.translate(list(perturbed[0]), align=False)]
        return bleu([text.lower() for text in outputs], [reference.lower() for reference in perturbed[1]])

    print("| input | BLEU, lowercased | share of the clean score |\n|---|---|---|")
    clean = None
    for name, perturb in perturbations.items():
        value = score(perturb(sources, references))
        clean = clean or value
        print(f"| {name} | {value:.1f} | {value / clean:.1%} |", flush=True)
    words = sorted({word.strip(string.punctuation) for source in sources for word in source.split()} - {""})
    outputs = translator.translate(draw.sample(words, min(500, len(words))), align=False)
    short = sum(len(output.text.split()) <= MAX_SINGLE_WORDS for output in outputs)
    print(f"| single word | | {short / len(outputs):.1%} of the outputs have at most {MAX_SINGLE_WORDS} words |")


if __name__ == "__main__":
    main()
