"""Normalises texts that are written unlike the training sources: case, spaces, final stop, spelling.

A model has no tokens for a spelling it was not trained on: in capitals every word falls apart into letters, and the
translation is noise. So such a text is translated in sentence case with single spaces, and its translation gets the
case and the outer white space of the text. Where nearly all training sources end with a full stop, a text without one
is translated with it, and its translation loses it again: a model hardly knows such texts, least of all single words.
Misspelt words are corrected where the model folder has a lexicon (spelling.py). A text like the training sources is not
changed.

Enters: a text. Leaves: a `NormalizedText`. The style of the training sources (`TextStyle`) is stored in the model
folder; without it nothing but spelling is changed. Knows nothing of tokenizers or models.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from heed.text.lexicon import MARKS, WORD
from heed.text.spelling import Correction, SpellingCorrector

Case = Literal["as is", "capitals", "title"]

_RARE = 0.01  # share of the training sources below which a style counts as unknown to the model
_MIN_CAPITALS, _MIN_TITLE = 2, 4  # words: fewer may be an acronym or a name
_USUAL = 0.9  # share of the training sources from which an end counts as the usual one
_STOPS = ".。．।"
_STOP_AT_END = re.compile(rf"\s*[{_STOPS}]\s*\Z")
_SPACES = re.compile(r"[^\S\n]{2,}")
_INITIAL = re.compile(rf"(?<![\w'’{MARKS}])\w")  # the first letter of a word


@dataclass(frozen=True)
class TextStyle:
    """How texts are written: the share of them in each style."""

    capitals: float  # ALL CAPS
    title: float  # Title Case
    spaces: float  # runs of spaces, or spaces at an end
    initial: float  # beginning with a capital letter
    stop: str = ""  # how nearly all end: "." or, in tokenised text, " ."; empty: otherwise

    def to_json(self) -> dict[str, float | str]:
        """The JSON object stored in a model folder."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "TextStyle | None":
        """Parse what `to_json` wrote; None for model folders without it (older or imported)."""
        shares = [field.name for field in fields(cls) if field.name != "stop"]
        if not isinstance(value, Mapping) or not all(isinstance(value.get(name), int | float) for name in shares):
            return None
        stop = value.get("stop", "")
        stop = stop if isinstance(stop, str) and _STOP_AT_END.fullmatch(stop) else ""
        return cls(**{name: float(value[name]) for name in shares}, stop=stop)


def text_style(texts: Sequence[str]) -> TextStyle:
    """The style of a sample of texts."""
    cases = [_case(text) for text in texts]
    count = max(1, len(texts))
    return TextStyle(
        cases.count("capitals") / count,
        cases.count("title") / count,
        sum(_SPACES.search(text) is not None or text != text.strip() for text in texts) / count,
        sum(text[:1].isupper() for text in texts) / count,
        _usual_stop(texts),
    )


def _usual_stop(texts: Sequence[str]) -> str:
    """The full stop at the end of nearly all texts, with the space before it in tokenised text; empty: none."""
    ends = Counter(
        " "[: text[-2:-1].isspace()] + text[-1] for text in map(str.strip, texts) if text[-1:] in tuple(_STOPS)
    )
    stop, count = max(ends.items(), key=lambda item: item[1], default=("", 0))
    return stop if count >= _USUAL * len(texts) else ""


@dataclass(frozen=True)
class NormalizedText:
    """A text as the model translates it, and what its translation gets back."""

    text: str
    case: Case = "as is"
    before: str = ""  # white space around the text
    after: str = ""
    original: str | None = None  # the text between them with single spaces, in its own case; None: its style is usual
    stop: str = ""  # added at the end of the text
    corrections: tuple[Correction, ...] = ()  # misspelt words that were replaced

    @property
    def is_changed(self) -> bool:
        """Whether the model translates another text than the user's."""
        return self.original is not None or bool(self.corrections)

    def restore(self, translation: str) -> str:
        """The translation in the case and with the outer white space of the original text."""
        return f"{self.before}{self.restore_case(self.without_stop(translation))}{self.after}"

    def without_stop(self, translation: str) -> str:
        """The translation without a full stop at its end, if the text got one."""
        return _STOP_AT_END.sub("", translation) if self.stop else translation

    def restore_case(self, translation: str) -> str:
        match self.case:
            case "capitals":
                return translation.replace("ß", "ẞ").upper()  # SS would be another word
            case "title":
                return _INITIAL.sub(lambda initial: initial[0].upper(), translation)
            case "as is":
                return translation


@dataclass(frozen=True)
class Normalizer:
    """Normalises texts for a model, by the style and the spelling of its training sources; None: unknown."""

    style: TextStyle | None = None
    spelling: SpellingCorrector | None = None

    def __call__(self, text: str, *, style: bool = True, spelling: bool = True) -> NormalizedText:
        """style: adapt case, spaces and final stop. spelling: correct misspelt words."""
        normalized = _in_style(text, self.style) if style and self.style is not None else NormalizedText(text)
        if not spelling or self.spelling is None:
            return normalized
        corrected, corrections = self.spelling(normalized.text)
        return replace(normalized, text=corrected, corrections=corrections)


def _in_style(text: str, style: TextStyle) -> NormalizedText:
    """The text in the case and with the spaces and the final stop of the training sources."""
    before, core, after = "", text, ""
    if style.spaces < _RARE:
        core = text.strip()
        start = text.find(core) if core else 0
        before, after = text[:start], text[start + len(core) :]
        core = _SPACES.sub(" ", core)
    ends_in_word = core[-1:].isalnum() or (core != "" and core[-1] in MARKS)
    case, stop = _case(core), style.stop if ends_in_word else ""
    if case == "as is" or getattr(style, case) >= _RARE:
        if core == text and not stop:
            return NormalizedText(text)
        return NormalizedText(core + stop, "as is", before, after, core, stop)
    lowered = core.lower() if case == "capitals" else WORD.sub(lambda word: _lower_initial(word[0]), core)
    if style.initial > 0.5:
        lowered = lowered[:1].upper() + lowered[1:]
    return NormalizedText(lowered + stop, case, before, after, core, stop)


def _lower_initial(word: str) -> str:
    """A word of a title in lower case, unless it has other capitals: NASA and McDonald stay as they are."""
    return word.lower() if word[1:] == word[1:].lower() else word


def _case(text: str) -> Case:
    cased = [word for word in WORD.findall(text) if word.lower() != word.upper()]  # no numbers, no caseless scripts
    if len(cased) >= _MIN_CAPITALS and all(word == word.upper() for word in cased):
        return "capitals"
    if len(cased) >= _MIN_TITLE and all(_starts_upper(word) for word in text.split() if word.lower() != word.upper()):
        return "title"
    return "as is"


def _starts_upper(word: str) -> bool:
    """Whether the first letter of a word is a capital; what follows a hyphen may not be one."""
    first = next((letter for letter in word if letter.isalpha()), word[0])
    return first == first.upper()
