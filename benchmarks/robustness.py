"""How much BLEU a model loses when its input is not as tidy as its training text.

    python benchmarks/robustness.py MODEL SOURCE REFERENCE [--train SOURCE TARGET] [--seed 1]

Each perturbation changes the sources, and where a faithful translation changes with them, the references. BLEU is
sacreBLEU's, lowercased, so that only the words count. Prints a Markdown table.

Single words have no references. With `--train`, the training text gives a lexicon: source words whose translation is
clear, since one target word occurs in nearly the same pairs (Dice coefficient). The row "in sentences" is the share of
outputs that contain that target word, over the sentences whose reference contains it; the row "single words" is that
share when the word is translated alone. Words are compared by their first letters: "steil" counts as "steilen".
"""

import argparse
import random
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import heed
from heed.evaluation.metrics import bleu

Lines = Sequence[str]
Perturbed = tuple[Lines, Lines]  # sources and references
TYPO_RATE = 0.05  # of the letters
LEAST_PAIRS, LEAST_DICE = 10, 0.5  # of a word and its translation, for the lexicon
STEM_LETTERS = 5


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


def words_of(text: str) -> set[str]:
    return {word.strip(string.punctuation) for word in text.lower().split()} - {""}


def stems_of(text: str) -> set[str]:
    return {word[:STEM_LETTERS] for word in words_of(text)}


def clear_translations(sources: Lines, targets: Lines) -> dict[str, str]:
    """Source words, each with the target word of the highest Dice coefficient, where it is high enough."""
    pairs = [(words_of(source), words_of(target)) for source, target in zip(sources, targets, strict=True)]
    source_counts, target_counts = (Counter(word for pair in pairs for word in pair[side]) for side in (0, 1))
    frequent = {word for word, count in source_counts.items() if count >= LEAST_PAIRS}
    both = Counter((word, other) for source, target in pairs for word in source & frequent for other in target)
    dice = {pair: 2 * count / (source_counts[pair[0]] + target_counts[pair[1]]) for pair, count in both.items()}
    best: dict[str, str] = {}
    for (word, other), score in sorted(dice.items(), key=lambda item: item[1]):
        if score >= LEAST_DICE:
            best[word] = other  # the highest comes last
    return best


def single_words(translate: Callable[[list[str]], list[str]], lexicon: dict[str, str], lines: Perturbed) -> None:
    """Print how often words are translated as in the lexicon, in the sentences and alone."""
    sources, references = lines
    outputs, hits = translate(list(sources)), list[bool]()
    for source, reference, output in zip(sources, references, outputs, strict=True):
        expected = {lexicon[word][:STEM_LETTERS] for word in words_of(source) & lexicon.keys()} & stems_of(reference)
        hits += [stem in stems_of(output) for stem in expected]
    words = sorted(lexicon.keys() & {word for source in sources for word in words_of(source)})
    outputs = translate(words)
    alone = [lexicon[word][:STEM_LETTERS] in stems_of(output) for word, output in zip(words, outputs, strict=True)]
    in_sentences, share = sum(hits) / len(hits), sum(alone) / len(alone)
    print(f"| {len(hits)} words in sentences | {in_sentences:.1%} as in the lexicon | |")
    print(f"| {len(alone)} single words | {share:.1%} as in the lexicon | {share / in_sentences:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--train", type=Path, nargs=2, help="training source and target, for single words")
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

    def translate(texts: list[str]) -> list[str]:
        return [output.text for output in translator.translate(texts, align=False)]

    def score(perturbed: Perturbed) -> float:
        outputs = translate(list(perturbed[0]))
        return bleu([text.lower() for text in outputs], [reference.lower() for reference in perturbed[1]])

    print("| input | BLEU, lowercased | share of the clean score |\n|---|---|---|")
    clean = None
    for name, perturb in perturbations.items():
        value = score(perturb(sources, references))
        clean = clean or value
        print(f"| {name} | {value:.1f} | {value / clean:.1%} |", flush=True)
    if arguments.train is not None:
        lexicon = clear_translations(*(path.read_text().splitlines() for path in arguments.train))
        single_words(translate, lexicon, (sources, references))


if __name__ == "__main__":
    main()
