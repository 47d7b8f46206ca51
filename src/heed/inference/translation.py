"""Translations of texts, joined from those of their segments, and the streaming translation of one segment."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from unicodedata import east_asian_width

from heed.backends.protocol import Backend
from heed.decoding.engine import max_output_lengths
from heed.search_config import SearchConfig
from heed.text.normalization import NormalizedText
from heed.text.sentence_split import TextSegment
from heed.text.spelling import Correction
from heed.text.tokenizer import TokenizerPair


@dataclass(frozen=True)
class Segment:
    """A segment of a text, translated on its own: its spans in the source and in the translation."""

    source: tuple[int, int]  # start and end, in characters
    target: tuple[int, int]


@dataclass(frozen=True)
class Translation:
    """The translation of a text, with its score, tokens, alignment and alternatives."""

    text: str
    score: float  # log-probability / length penalty: what the search ranks by
    log_prob: float
    ids: tuple[int, ...]
    tokens: tuple[str, ...]  # the text of each id
    source_tokens: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]  # (source token, target token)
    alternatives: tuple["Translation", ...] = ()  # the other results, if nbest > 1
    truncated: bool = False  # the length limit, not the model, ended it or one of its segments
    segments: tuple[Segment, ...] = ()  # in order
    normalized: bool = False  # the text, or a segment of it, was changed before translation: case, spaces or final stop
    corrections: tuple[Correction, ...] = ()  # the misspelt words that were replaced before translation


def restored(translation: Translation, source: NormalizedText) -> Translation:
    """The translation of a normalised text, in the case and with the outer white space of the original."""
    if not source.is_changed:
        return translation
    text = source.without_stop(translation.text)
    tokens = _without_end(translation.tokens, len(translation.text) - len(text))
    source_tokens = _without_end(translation.source_tokens, len(source.stop))
    if source.original is not None and not source.corrections:  # corrected words are shown as they were translated
        source_tokens = _spelt_as(source.original, source_tokens)
    return replace(
        translation,
        text=source.restore(text),
        tokens=_spelt_as(source.restore_case(text), tokens),
        source_tokens=source_tokens,
        alternatives=tuple(restored(alternative, source) for alternative in translation.alternatives),
        normalized=source.original is not None,
        corrections=source.corrections,
    )


def _without_end(tokens: tuple[str, ...], characters: int) -> tuple[str, ...]:
    """The tokens without so many characters at their end; as many tokens, since alignments count them."""
    kept = max(0, sum(map(len, tokens)) - characters)
    starts = (end - len(token) for token, end in zip(tokens, accumulate(map(len, tokens)), strict=True))
    return tuple(token[: max(0, kept - start)] for token, start in zip(tokens, starts, strict=True))


def _spelt_as(text: str, tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The tokens in the case of `text`, which differs from them in nothing else; unchanged if its length differs."""
    joined, text = "".join(tokens), text.strip()
    start, end = len(joined) - len(joined.lstrip()), len(joined.rstrip())
    if end - start != len(text):  # İ, for example, is two characters in lower case
        return tokens
    cased = joined[:start] + text + joined[end:]
    ends = list(accumulate(map(len, tokens)))
    return tuple(cased[end - len(token) : end] for token, end in zip(tokens, ends, strict=True))


def join_translations(results: Sequence[Translation | None], text_segments: Sequence[TextSegment]) -> Translation:
    """Join the translations of a text's segments; a segment of white space has none."""
    count = min((len(result.alternatives) for result in results if result is not None), default=0)
    ranks = [[result and (result, *result.alternatives)[rank] for result in results] for rank in range(count + 1)]
    best, *alternatives = (_concatenate(rank, text_segments) for rank in ranks)
    return replace(best, alternatives=tuple(alternatives))


def _concatenate(results: Sequence[Translation | None], text_segments: Sequence[TextSegment]) -> Translation:
    text, score, log_prob, source_offset = "", 0.0, 0.0, 0
    ids: list[int] = []
    tokens: list[str] = []
    source_tokens: list[str] = []
    alignment: list[tuple[int, int]] = []
    segments: list[Segment] = []
    for result, text_segment in zip(results, text_segments, strict=True):
        text += space_before(text_segment, text) + text_segment.before
        source_offset += len(text_segment.before)
        if result is not None:
            alignment += [(len(source_tokens) + source, len(tokens) + target) for source, target in result.alignment]
            ids += result.ids
            tokens += result.tokens
            source_tokens += result.source_tokens
            score, log_prob = score + result.score, log_prob + result.log_prob
            spans = (source_offset, source_offset + len(text_segment.text)), (len(text), len(text) + len(result.text))
            segments.append(Segment(*spans))
            text += result.text
        text += text_segment.after
        source_offset += len(text_segment.text) + len(text_segment.after)
    truncated = any(result.truncated for result in results if result is not None)
    normalized = any(result.normalized for result in results if result is not None)
    corrections = tuple(correction for result in results if result is not None for correction in result.corrections)
    columns = (tuple(ids), tuple(tokens), tuple(source_tokens), tuple(alignment), (), truncated, tuple(segments))
    return Translation(text, score, log_prob, *columns, normalized, corrections)


def space_before(segment: TextSegment, written: str) -> str:
    """The space to insert between translations of sentences that have none between them, as in Chinese."""
    if not segment.no_space_before or not written or written[-1].isspace():
        return ""
    return "" if east_asian_width(written[-1]) in "WF" else " "


def stream_segment(
    backend: Backend, tokenizers: TokenizerPair, search: SearchConfig, text: NormalizedText, prefix: str
) -> Generator[str, None, tuple[str, bool]]:
    """Yield the greedy translation of one segment as it is decoded.

    Returns the whole translation, and whether the length limit truncated it.
    """
    from heed.decoding.decode import greedy_stream  # noqa: PLC0415 - torch takes seconds to import

    source, target = tokenizers
    ids, (prefix_ids,) = source.encode([text.text]), target.encode([prefix])
    max_length = max(*max_output_lengths(backend.configs, ids, search), len(prefix_ids))
    written: list[int] = []
    shown = ""
    tokens = greedy_stream(backend.start(ids), max_length, search, prefix_ids)
    while True:
        try:
            written.append(next(tokens))
        except StopIteration as end:
            truncated: bool = end.value
            break
        decoded = text.before + text.restore_case(text.without_stop(*target.decode([written])))
        if not decoded.endswith("\ufffd") and len(decoded) > len(shown):  # not in the middle of a character
            yield decoded[len(shown) :]
            shown = decoded
    whole = text.restore(*target.decode([written]))
    if len(whole) > len(shown):
        yield whole[len(shown) :]
    return whole, truncated
