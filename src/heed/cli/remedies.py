"""Descriptions and remedies that `heed doctor` prints for each type of problem in a corpus."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heed.corpus_checks.text_errors import CorpusForm


class Advice(NamedTuple):
    """What `heed doctor` prints about a type of problem: its description, the unit it is counted in, and a remedy."""

    description: str
    unit: str
    remedy: str


ADVICE: dict[str, Advice] = {
    "unreadable": Advice(
        "Unreadable row",
        "row",
        "Training stops at the first. Correct them, or write all other rows with heed doctor --write clean.tsv.",
    ),
    "leaked": Advice(
        "Validation pair that is also in the training set",
        "pair",
        "Remove it from the training set: otherwise the validation score measures memorisation.",
    ),
    "leaked_source": Advice(
        "Validation source that is in the training set with another target",
        "pair",
        "A few short ones are coincidence. If there are many, split training and validation set by document.",
    ),
    "leaked_target": Advice(
        "Validation target that is in the training set with another source",
        "pair",
        "A few short ones are coincidence; many inflate the validation score.",
    ),
    "swapped": Advice(
        "Source and target seem to be swapped",
        "pair",
        "Swap them back, or remove them. Detected by the letter statistics of each side.",
    ),
    "source_foreign": Advice(
        "Source seems to be in the target language",
        "pair",
        "Remove it: it teaches the model to copy. Detected by the letter statistics of each side.",
    ),
    "target_foreign": Advice(
        "Target seems to be in the source language",
        "pair",
        "Remove it, or translate it: it teaches the model to copy.",
    ),
    "copied": Advice(
        "Source and target are the same",
        "pair",
        "Correct for names and numbers; but 1 % of copied sentences already teaches the model to copy.",
    ),
    "unlike": Advice(
        "Source or target is unlike the rest of the corpus",
        "pair",
        "Check it: remove other languages, code and noise; rare names are harmless.",
    ),
    "empty": Advice("Source or target is empty", "pair", "Nothing to do: training skips it and reports how many."),
    "too_long": Advice(
        "Probably longer than data.max_tokens",
        "pair",
        "Training skips it. Split it into sentences, or raise data.max_tokens.",
    ),
    "cut_off": Advice(
        "Target probably longer than the length limit of translations",
        "pair",
        "A translation this long would be truncated: raise search.max_length, or leave it unset to have it fitted.",
    ),
    "unequal": Advice(
        "Source and target differ greatly in length",
        "pair",
        "Check it: probably not a translation, or of a different number of sentences.",
    ),
    "repeated": Advice(
        "Duplicate pair",
        "pair",
        "A few are harmless; many skew the distribution. Remove them, or set corpus weights with --weight.",
    ),
    "ambiguous": Advice(
        "Source with several targets",
        "source",
        "Normal in small numbers. If there are many, check whether the lines are misaligned.",
    ),
    "unknown_label": Advice(
        "Validation label that is not in the training set",
        "text",
        "A classifier cannot predict it: add training texts with this label, or correct it.",
    ),
    "replacement": Advice(
        "Replacement characters (U+FFFD)",
        "text",
        "Characters were lost in a conversion: go back to the original, or remove the text.",
    ),
    "mojibake": Advice(
        "UTF-8 decoded as Latin-1 (mojibake)",
        "text",
        "Convert it back, for instance with the package ftfy: the model would learn to output it.",
    ),
    "control": Advice(
        "Control or invisible characters",
        "text",
        "Remove them: they are invisible, but each becomes a token.",
    ),
    "spaces": Advice(
        "Tabs, no-break, doubled, leading or trailing spaces",
        "text",
        "Replace each with a single plain space: a word after another kind of space is a different token.",
    ),
    "markup": Advice(
        "HTML entities or tags", "text", "Unescape entities and remove tags, unless the model is to output them."
    ),
    "decomposed": Advice(
        "Decomposed accents (not in Unicode NFC)",
        "text",
        "Normalise to NFC: most text has é as one character, and to the model the two forms are different tokens.",
    ),
}
_ADVICE_ON_TEXTS: dict[str, Advice] = {
    "leaked": Advice(
        "Validation text that is also in the training set",
        "text",
        "Remove it from the training set: otherwise the validation score measures memorisation.",
    ),
    "empty": Advice("Empty text", "text", "Nothing to do: training skips it and reports how many."),
    "too_long": Advice(
        "Probably longer than data.max_tokens",
        "text",
        "Training skips it. Split it, raise data.max_tokens, or set data.documents=true, which splits it.",
    ),
    "repeated": Advice(
        "Duplicate text",
        "text",
        "A few are harmless; many skew the distribution. Remove them, or set corpus weights with --weight.",
    ),
}
_ADVICE_ON_LABELLED_TEXTS: dict[str, Advice] = {
    **_ADVICE_ON_TEXTS,
    "too_long": Advice(
        "Probably longer than data.max_tokens",
        "text",
        "Training skips it. Shorten it, or raise data.max_tokens.",
    ),
    "empty": Advice("Text or label is empty", "text", "Nothing to do: training skips it and reports how many."),
    "swapped": Advice(
        "Labels and texts seem to be swapped: nearly every label is different",
        "text",
        "Swap the columns with --columns 2,1; or, if there really are so many labels, name them with data.labels.",
    ),
    "leaked_source": Advice(
        "Validation text that is in the training set with another label",
        "text",
        "One of the two is wrong, or the label cannot be predicted from the text: check both.",
    ),
    "ambiguous": Advice(
        "Text with several labels",
        "text",
        "Only one can be right: check which, and whether labels and texts are misaligned.",
    ),
}


def advice_on(kind: str, form: "CorpusForm") -> Advice:
    """The advice on a type of problem, in the words for sentence pairs, texts or labelled texts."""
    specific = {"pairs": {}, "texts": _ADVICE_ON_TEXTS, "labelled": _ADVICE_ON_LABELLED_TEXTS}[form]
    return specific.get(kind, ADVICE[kind])
