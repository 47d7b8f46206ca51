"""A translation, put together from those of the pieces of a text; also as it is being found, in a stream."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from unicodedata import east_asian_width

from heed.backends.base import Backend
from heed.config import SearchConfig
from heed.decoding.decode import greedy_stream
from heed.decoding.engine import max_output_lengths
from heed.text.sentence_split import TextSegment
from heed.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Segment:
    """A part of a text that was translated by itself: where it stands in the source and in the translation."""

    source: tuple[int, int]  # offsets of characters, from and up to
    target: tuple[int, int]


@dataclass(frozen=True)
class Translation:
    """One translation of one text."""

    text: str
    score: float  # the log-probability, divided by the length penalty: what the search ranks by
    log_prob: float
    ids: tuple[int, ...]
    tokens: tuple[str, ...]  # the same as text to be shown
    source_tokens: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]  # (source token, target token)
    alternatives: tuple["Translation", ...] = ()  # the next best, if more than one was asked for
    truncated: bool = False  # the length limit ended it, or a part of it, and not the model
    segments: tuple[Segment, ...] = ()  # the parts that were translated one by one, in order


def join_translations(found: Sequence[Translation | None], pieces: Sequence[TextSegment]) -> Translation:
    """The translations of a text's pieces as one; white space pieces have none."""
    whole = [one for one in found if one is not None]
    depth = min((len(one.alternatives) for one in whole), default=0)
    ranks = [[one and (one, *one.alternatives)[rank] for one in found] for rank in range(depth + 1)]
    best, *others = (_in_a_row(rank, pieces) for rank in ranks)
    return replace(best, alternatives=tuple(others))


def _in_a_row(found: Sequence[Translation | None], pieces: Sequence[TextSegment]) -> Translation:
    text, score, log_prob, source_offset = "", 0.0, 0.0, 0
    ids: list[int] = []
    tokens: list[str] = []
    sources: list[str] = []
    alignment: list[tuple[int, int]] = []
    segments: list[Segment] = []
    for one, piece in zip(found, pieces, strict=True):
        text += space_before(piece, text) + piece.before
        source_offset += len(piece.before)
        if one is not None:
            alignment += [(len(sources) + source, len(tokens) + target) for source, target in one.alignment]
            ids += one.ids
            tokens += one.tokens
            sources += one.source_tokens
            score, log_prob = score + one.score, log_prob + one.log_prob
            spans = (source_offset, source_offset + len(piece.text)), (len(text), len(text) + len(one.text))
            segments.append(Segment(*spans))
            text += one.text
        text += piece.after
        source_offset += len(piece.text) + len(piece.after)
    truncated = any(one.truncated for one in found if one is not None)
    whole = (tuple(ids), tuple(tokens), tuple(sources), tuple(alignment))
    return Translation(text, score, log_prob, *whole, truncated=truncated, segments=tuple(segments))


def space_before(piece: TextSegment, written: str) -> str:
    """Sentences that follow one another without a space, as in Chinese, need one where the translation's do."""
    if not piece.no_space_before or not written or written[-1].isspace():
        return ""
    return "" if east_asian_width(written[-1]) in "WF" else " "


def stream_piece(
    backend: Backend, tokenizers: tuple[Tokenizer, Tokenizer], search: SearchConfig, text: str, prefix: str
) -> Generator[str, None, tuple[str, bool]]:
    """The greedy translation of what is translated at once.

    Returns all of it, and whether the length limit cut it off.
    """
    source, target = tokenizers
    ids, starts = source.encode([text]), target.encode([prefix])
    longest = max(*max_output_lengths(backend.configs, ids, search), len(starts[0]))
    written: list[int] = []
    shown = ""
    tokens = greedy_stream(backend.start(ids), longest, search, starts[0])
    while True:
        try:
            written.append(next(tokens))
        except StopIteration as end:
            truncated: bool = end.value
            break
        (so_far,) = target.decode([written])
        if not so_far.endswith("\ufffd") and len(so_far) > len(shown):  # else a character is not whole yet
            yield so_far[len(shown) :]
            shown = so_far
    (whole,) = target.decode([written])
    if len(whole) > len(shown):
        yield whole[len(shown) :]
    return whole, truncated
