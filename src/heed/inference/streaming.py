"""A translation as it is being found: text comes as soon as its characters are whole."""

from collections.abc import Generator

from heed.backends.base import Backend, Hypothesis
from heed.config import SearchConfig
from heed.decoding.decode import greedy_stream
from heed.decoding.engine import greatest_lengths
from heed.decoding.truncation import mark_truncated
from heed.text.tokenizer import Tokenizer


def stream_piece(
    backend: Backend, tokenizers: tuple[Tokenizer, Tokenizer], search: SearchConfig, text: str, prefix: str
) -> Generator[str, None, tuple[str, bool]]:
    """The greedy translation of what is translated at once.

    Returns all of it, and whether the length limit cut it off.
    """
    source, target = tokenizers
    ids, starts = source.encode([text]), target.encode([prefix])
    longest = max(*greatest_lengths(backend.configs, ids, search), len(starts[0]))
    written: list[int] = []
    shown = ""
    for token in greedy_stream(backend.start(ids), longest, search, starts[0]):
        written.append(token)
        (so_far,) = target.decode([written])
        if not so_far.endswith("\ufffd") and len(so_far) > len(shown):  # else a character is not whole yet
            yield so_far[len(shown) :]
            shown = so_far
    (whole,) = target.decode([written])
    if len(whole) > len(shown):
        yield whole[len(shown) :]
    ((marked,),) = mark_truncated([[Hypothesis.of(written, 0.0, 0.0)]], [longest], search, lambda _: backend.start(ids))
    return whole, marked.truncated
