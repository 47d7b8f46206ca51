"""Pairs written to JSON Lines files: those of a corpus, and those of which models translated one side.

Enters: surveyed corpora and the folders of models. Leaves: one file per corpus, `NAME-1.jsonl`, `NAME-2.jsonl`, …
Translating takes a while, so an unfinished file is continued after its last complete line.
"""

import os
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from heed.evaluation.repetition import repeats_itself
from heed.inference.open import load
from heed.inference.translation import Translation
from heed.inference.translator import Translator
from heed.text.corpus import Corpus, Pair, append_pairs, read_pairs
from heed.text.prepare import SurveyedCorpora
from heed.training.step_log import Listener

# Texts translated at a time: enough to batch sentences of similar length, and to occupy a GPU.
_CHUNK, _GPU_CHUNK = 1000, 10_000


def write_pairs(surveyed: SurveyedCorpora, folder: Path, name: str) -> list[str]:
    """Write the pairs of each corpus to a file; returns the paths."""
    files = _files(surveyed, folder, name)
    for file, (corpus, _) in zip(files, surveyed, strict=True):
        if not file.exists():
            _unfinished(file).unlink(missing_ok=True)
            append_pairs(_unfinished(file), read_pairs(corpus))
            _unfinished(file).replace(file)
    return [str(file) for file in files]


def translate_corpora(
    models: Sequence[str | os.PathLike[str]],
    surveyed: SurveyedCorpora,
    folder: Path,
    name: str,
    listener: Listener,
    *,
    reverse: bool = False,
) -> list[str]:
    """Write each corpus with one side replaced by the translation of the other; returns the paths.

    models: one model, or several as an ensemble. reverse: they translate the targets, so the sources are replaced.
    """
    files = _files(surveyed, folder, name)
    if not all(file.exists() for file in files):
        translator = load(*(os.fspath(model) for model in models))
        side = "targets" if reverse else "sources"
        listener.note(
            f"translating the {side} with {' + '.join(map(str, models))}, backend {translator.backend.choice}"
        )
        left_out: Counter[str] = Counter()
        for file, (corpus, survey) in zip(files, surveyed, strict=True):
            if not file.exists():
                left_out += _translate_corpus(translator, corpus, survey.pairs, file, reverse, listener)
        for reason, count in left_out.items():
            listener.note(f"translations left out because they {reason}: {count:,}")
    return [str(file) for file in files]


def _translate_corpus(
    translator: Translator, corpus: Corpus, total: int, file: Path, reverse: bool, listener: Listener
) -> "Counter[str]":
    """Append translations to an unfinished file until it is complete; returns how many were left out, by reason.

    A translation that is left out is written as an empty one: training skips it, and the lines stay aligned.
    """
    unfinished = _unfinished(file)
    left_out: Counter[str] = Counter()
    done = _complete_lines(unfinished)
    pairs = islice(read_pairs(corpus), done, None)
    size = _CHUNK if translator.backend.choice.device == "cpu" else _GPU_CHUNK
    while chunk := list(islice(pairs, size)):
        listener.work("translating", done, total)
        results = translator.translate([pair.target if reverse else pair.source for pair in chunk], align=False)
        rows = []
        for pair, result in zip(chunk, results, strict=True):
            reason = _why_left_out(result, pair.source if reverse else pair.target)
            left_out.update([reason] if reason else [])
            text = "" if reason else result.text
            rows.append(Pair(text, pair.target, 0) if reverse else Pair(pair.source, text, 0))
        append_pairs(unfinished, rows)
        done += len(chunk)
    listener.work("translating", done, total)
    unfinished.replace(file)
    return left_out


def _why_left_out(result: Translation, original: str) -> str:
    """Why a translation is unfit for training; empty if it is fit. A student of repetitions repeats itself more."""
    if result.truncated:
        return "reached the length limit"
    return "repeat themselves" if repeats_itself(result.text, original) else ""


def _files(surveyed: SurveyedCorpora, folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}-{number}.jsonl" for number, _ in enumerate(surveyed, 1)]


def _unfinished(file: Path) -> Path:
    return file.with_name(f".{file.name}.writing")


def _complete_lines(file: Path) -> int:
    """The number of lines of a file whose writing was interrupted; an incomplete last line is removed."""
    if not file.exists():
        return 0
    content = file.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        file.write_bytes(complete)
    return complete.count(b"\n")
