"""The words of `heed doctor` for each kind of finding: what it is, what is counted, and what to do about it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heed.corpus_checks.text_errors import CorpusForm

# Of each kind of finding: what it is, what is counted, and what to do about it.
WORDS: dict[str, tuple[str, str, str]] = {
    "unreadable": (
        "Row that cannot be read",
        "row",
        "Training stops at the first. Correct them, or let heed doctor --write clean.tsv write all others.",
    ),
    "leaked": (
        "Validation pair that is in training too",
        "pair",
        "Take it out of training: a score on what was learnt by heart says nothing.",
    ),
    "leaked_source": (
        "Validation source that is in training, with another target",
        "pair",
        "A few short ones are chance. If there are many, the texts were split badly: split by document.",
    ),
    "leaked_target": (
        "Validation target that is in training, with another source",
        "pair",
        "A few short ones are chance; many make the validation score too good.",
    ),
    "swapped": (
        "Source and target seem to be swapped",
        "pair",
        "Swap them back, or leave them out. Judged by the letters that are usual on each side.",
    ),
    "source_foreign": (
        "Source reads like the target's language",
        "pair",
        "Leave it out: it teaches the model to copy. Judged by the letters that are usual on each side.",
    ),
    "target_foreign": (
        "Target reads like the source's language",
        "pair",
        "Leave it out, or translate it: it teaches the model to copy.",
    ),
    "copied": (
        "Source and target are the same",
        "pair",
        "Right for names and numbers; of sentences even one in a hundred teaches the model to copy.",
    ),
    "unlike": (
        "A side is unlike all the rest of that side",
        "pair",
        "Look at it: a third language, code or noise? Leave out what is; rare names are harmless.",
    ),
    "empty": ("A side is empty", "pair", "Nothing need be done: training leaves it out, and says so."),
    "too_long": (
        "Probably longer than data.max_tokens",
        "pair",
        "Training leaves it out. Cut it into sentences, or raise data.max_tokens.",
    ),
    "cut_off": (
        "Target probably longer than a translation may be",
        "pair",
        "A translation that long would be cut off: the limit is search.max_length, or else the source's tokens and 50.",
    ),
    "unequal": (
        "One side is far longer than the other",
        "pair",
        "Look at it: probably not a translation, or one of several sentences.",
    ),
    "repeated": (
        "Pair that was there before",
        "pair",
        "A few are harmless; many weigh more than they should. Leave them out, or weigh corpora with --weight.",
    ),
    "ambiguous": (
        "Source with several targets",
        "source",
        "Normal in small numbers. If there are many, the model averages: look whether lines have slipped.",
    ),
    "unknown_label": (
        "Validation label that training does not have",
        "text",
        "A classifier cannot say what it has not learnt: add texts with this label, or correct it.",
    ),
    "replacement": (
        "Replacement characters (U+FFFD)",
        "text",
        "Letters were lost when the text was converted: go back to the original, or leave it out.",
    ),
    "mojibake": (
        "UTF-8 that was taken for Latin-1",
        "text",
        "Convert it back (the package ftfy does): the model would learn to write it.",
    ),
    "control": (
        "Control or invisible characters",
        "text",
        "Remove them: nobody sees them, but every one is a token.",
    ),
    "spaces": (
        "Tabs, no-break, doubled, leading or trailing spaces",
        "text",
        "Make each a plain single space: a word after another space is another token.",
    ),
    "markup": ("HTML entities or tags", "text", "Unescape entities and take tags out, unless they are to be learnt."),
    "decomposed": (
        "Letters and accents apart (not in Unicode's NFC)",
        "text",
        "Normalise to NFC: people and most texts write é as one character, to the model é is another word.",
    ),
}
_OF_TEXTS: dict[str, tuple[str, str, str]] = {
    "leaked": (
        "Validation text that is in training too",
        "text",
        "Take it out of training: a score on what was learnt by heart says nothing.",
    ),
    "empty": ("There is nothing in it", "text", "Nothing need be done: training leaves it out, and says so."),
    "too_long": (
        "Probably longer than data.max_tokens",
        "text",
        "Training leaves it out. Cut it, raise data.max_tokens, or set data.documents=true: then it is cut for you.",
    ),
    "repeated": (
        "Text that was there before",
        "text",
        "A few are harmless; many weigh more than they should. Leave them out, or weigh corpora with --weight.",
    ),
}
_LABELLED: dict[str, tuple[str, str, str]] = {
    **_OF_TEXTS,
    "too_long": (
        "Probably longer than data.max_tokens",
        "text",
        "Training leaves it out. Shorten it, or raise data.max_tokens.",
    ),
    "empty": ("Text or label is empty", "text", "Nothing need be done: training leaves it out, and says so."),
    "swapped": (
        "Labels and texts seem to be swapped: nearly every label is another",
        "text",
        "Read them the other way round with --columns 2,1; or name the labels with data.labels if they are so many.",
    ),
    "leaked_source": (
        "Validation text that is in training, with another label",
        "text",
        "One of the two is wrong, or the label does not follow from the text: look at both.",
    ),
    "ambiguous": (
        "Text with several labels",
        "text",
        "Only one can be learnt: look which is right, or whether labels have slipped.",
    ),
}


def words_for(kind: str, form: "CorpusForm") -> tuple[str, str, str]:
    """What a kind of finding is, what is counted, and what to do, for text that comes in this form."""
    others: dict[CorpusForm, dict[str, tuple[str, str, str]]] = {"pairs": {}, "texts": _OF_TEXTS, "labelled": _LABELLED}
    return others[form].get(kind, WORDS[kind])
