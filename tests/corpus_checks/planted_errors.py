"""Clean sentence pairs, and for each type of text error a function that puts it into a pair."""

import codecs
import functools
import unicodedata
from collections.abc import Callable

from heed.corpus_checks.text_errors import TextErrorType
from heed.microworld.corpus import DatasetSplit
from heed.microworld.corpus import corpus as microworld

SentencePairs = list[tuple[str, str]]


@functools.cache
def generated_pairs(split: DatasetSplit, count: int, seed: int) -> SentencePairs:
    return [(pair.source, pair.target) for pair in microworld(split, count, seed)]


def clean_pairs(count: int) -> SentencePairs:
    return generated_pairs("train", 2000, 0)[:count]


def decompose_accents(pair: tuple[str, str]) -> tuple[str, str]:
    return pair[0], unicodedata.normalize("NFD", pair[1] + " L'été.")


# For each type: a function that puts the error into a pair, and the file in which it is reported.
PLANTED_ERRORS: dict[TextErrorType, tuple[Callable[[tuple[str, str]], tuple[str, str]], str]] = {
    "empty": (lambda pair: (pair[0], ""), "en"),
    "copied": (lambda pair: (pair[0], pair[0]), "en"),
    "swapped": (lambda pair: (pair[1], pair[0]), "en"),
    "source_foreign": (lambda pair: (pair[1] + " Le roi.", pair[1]), "en"),
    "target_foreign": (lambda pair: (pair[0], pair[0] + " The king."), "en"),
    "unlike": (lambda pair: (pair[0], codecs.encode(pair[1], "rot13")), "en"),
    "unequal": (lambda pair: (pair[0], " ".join([pair[1]] * 6)), "en"),
    "cut_off": (lambda pair: (" ".join([pair[0]] * 20)[:120].strip(), " ".join([pair[1]] * 20)[:300].strip()), "en"),
    "too_long": (lambda pair: (" ".join([pair[0]] * 60), " ".join([pair[1]] * 60)), "en"),
    "replacement": (lambda pair: (pair[0], pair[1][:3] + "\ufffd" + pair[1][3:]), "fr"),
    "mojibake": (lambda pair: (pair[0], pair[1] + " CafÃ©."), "fr"),
    "control": (lambda pair: (pair[0][:3] + "\x07" + pair[0][3:], pair[1]), "en"),
    "spaces": (lambda pair: (pair[0], pair[1].replace(" ", "\u00a0", 1)), "fr"),
    "markup": (lambda pair: (pair[0] + " <b>Salt</b> &amp; pepper.", pair[1] + " Sel et poivre."), "en"),
    "decomposed": (decompose_accents, "fr"),
}
