"""The texts of a run: read once, with pairs held out for validation, and with pairs of words added.

Enters: corpora. Leaves: surveyed corpora, of which every line is valid.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from heed.config import DataConfig
from heed.errors import ConfigError, DataError
from heed.text.corpus import Corpus, Pair, append_pairs, read_pairs
from heed.text.hold_out import hold_out, pairs_to_hold_out
from heed.text.prepare import SurveyedCorpora, both_sides, survey
from heed.text.word_pairs import word_pairs, written_as
from heed.training.step_log import Listener
from heed.training.tasks import task_named

ReportWork = Callable[[str, int, int | None], None]  # `Listener.work`: activity, pairs done, total pairs if known

WORD_PAIRS = "word-pairs.jsonl"  # in a run's folder
_WEIGHT = 0.25  # of a word pair beside a sentence: enough to be translated right, and sentences lose nothing


def survey_all(corpora: Iterable[Corpus], report: ReportWork) -> SurveyedCorpora:
    """Read every corpus once; raises for an empty one."""
    surveyed = []
    for corpus in corpora:
        result = survey(corpus, lambda done: report("reading", done, None))
        if result.pairs == 0:
            raise DataError(f"{corpus.name} is empty: expected text")
        surveyed.append((corpus, result))
    return surveyed


def count_pairs(surveyed: SurveyedCorpora) -> int:
    return sum(result.pairs for _, result in surveyed)


def with_validation(
    training: SurveyedCorpora,
    validation: SurveyedCorpora,
    data: DataConfig,
    listener: Listener,
    *,
    hold_some_out: bool = True,
) -> tuple[SurveyedCorpora, SurveyedCorpora]:
    """The training and the validation text; without validation text, pairs are held out of the training text."""
    if validation:
        if data.hold_out:
            raise ConfigError(f"data.hold_out = {data.hold_out} is for runs without validation text, and some is given")
        return training, validation
    pairs = count_pairs(training)
    count = pairs_to_hold_out(pairs, data.hold_out) if hold_some_out else 0
    if count:
        sides = task_named(data.task).sides
        training, validation = hold_out(training, count, sides, lambda done: listener.work("holding out", done, pairs))
    if held_out := count_pairs(validation):
        listener.note(
            f"validation: no text was given, so {held_out:,} of {pairs:,} are held out (data.hold_out=0 holds out none)"
        )
    else:
        if data.hold_out == 0 or not hold_some_out:
            reason = "as set"
        elif not count:
            reason = f"{pairs:,} are too few to hold some out"
        else:
            reason = "every pair is empty, repeated often, or the only one of its label"
        listener.note(f"validation: none ({reason}): no early stopping, and the last checkpoint becomes the model")
    return training, validation


def with_word_pairs(
    training: SurveyedCorpora, file: Path, listener: Listener, *, resumes: bool = False
) -> SurveyedCorpora:
    """The training text with one more corpus: words and their translations, which are written to `file`.

    resumes: the pairs of a file that is there already are used, whatever this version would find.
    """
    if not (resumes and file.exists()):
        listener.work("pairing words", 0, None)
        found = word_pairs(pair for corpus, _ in training for pair in read_pairs(corpus))
        if not found:
            listener.note("data.word_pairs: no word of the training text has a clear translation")
            return training
        _write_word_pairs(found, training, file)
        listener.note(f"word pairs: {len(found):,} words whose translation is clear, in {file}")
    return [*training, *survey_all([Corpus(pairs=str(file), weight=_WEIGHT)], listener.work)]


def _write_word_pairs(found: Sequence[tuple[str, str]], training: SurveyedCorpora, file: Path) -> None:
    """Write each word as the texts of its side are written."""
    styles = [side.style for side in both_sides(training)]
    texts = (zip(*map(written_as, styles, pair), strict=True) for pair in found)
    unique = dict.fromkeys(pair for forms in texts for pair in forms)
    new = file.with_name(f".{file.name}.{os.getpid()}")  # other processes may write the same file
    new.unlink(missing_ok=True)  # of a process that was killed
    append_pairs(new, (Pair(source, target, 0) for source, target in unique))
    new.replace(file)
