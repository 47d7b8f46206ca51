import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heed import ModelConfig, Transformer
from heed.errors import InputError
from heed.model.layout import AttentionPattern, Beams, Packed, Padded
from tests.model.examples import SHAPE, packed, sentences


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation makes while it is switched on."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(made, Tensor):
                self.size = max(self.size, made.numel())
        return result


def test_packed_attention_never_meets_all_positions_times_all_positions() -> None:
    config = ModelConfig(**SHAPE)
    model = Transformer(config)
    src, src_layout = packed(sentences([3, 5] * 200, torch.device("cpu")))
    tgt_in, tgt_layout = packed(sentences([5, 3] * 200, torch.device("cpu")))
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        model(src, tgt_in, src_layout, tgt_layout).sum().backward()
    every_position_of_the_rows = 400 * 5 * max(config.d_ff, config.vocab_size, config.heads * 5)
    assert largest.size <= 2 * every_position_of_the_rows < len(src) * len(tgt_in) / 10


def test_positions_count_tokens_and_not_padding() -> None:
    layout = Padded.from_ids(torch.tensor([[0, 0, 7, 8], [7, 0, 8, 0]]), pad_id=0)
    assert layout.positions.tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert Padded.from_mask(layout.token_mask, torch.tensor([[5], [9]])).positions.tolist() == [
        [4, 4, 5, 6],
        [9, 9, 10, 10],
    ]


def test_packed_describes_sentences_end_to_end() -> None:
    layout = Packed.from_lengths([2, 3, 1])
    assert layout.cu_seqlens.tolist() == [0, 2, 5, 6]
    assert layout.positions.tolist() == [0, 1, 0, 1, 2, 0]
    assert layout.token_mask.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    words = torch.tensor([10, 11, 20, 21, 22, 30])
    assert layout.to_rows(words).tolist() == [[10, 11, 0], [20, 21, 22], [30, 0, 0]]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Padded.from_mask(torch.ones(4, 3, dtype=torch.bool)), (4, 3, 2, 5)),
        (Packed.from_lengths([2, 3, 1]), (6, 2, 5)),
        (Beams.of(Padded.from_mask(torch.ones(6, 2, dtype=torch.bool)), 3), (6, 2, 2, 5)),
    ],
    ids=["padded", "packed", "beams"],
)
def test_rows_and_back_changes_nothing(layout: Padded | Packed | Beams, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    rows = layout.to_rows(x)
    assert rows.shape[:2] == layout.token_mask.shape
    assert torch.equal(layout.from_rows(rows), x)


def test_hypotheses_of_one_sentence_stand_in_one_row() -> None:
    layout = Beams.of(Padded.from_mask(torch.ones(4, 2, dtype=torch.bool)), 2)
    assert layout.to_rows(torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_causal_sight_ends_at_the_query_and_the_last_query_sees_the_last_key() -> None:
    queries = Padded.from_mask(torch.ones(1, 2, dtype=torch.bool))
    keys = Padded.from_mask(torch.tensor([[True, False, True, True]]))
    mask = AttentionPattern.between(queries, keys, causal=True).mask
    assert mask.tolist() == [[[True, False, True, False], [True, False, True, True]]]


def test_a_sight_knows_the_queries_that_may_see_nothing() -> None:
    queries = Padded.from_mask(torch.ones(2, 2, dtype=torch.bool))
    keys = Padded.from_mask(torch.tensor([[True, True, False], [False, False, False]]))
    blind = AttentionPattern.between(queries, keys).fully_masked
    assert blind is not None
    assert blind.tolist() == [[False], [True]]
    only = torch.tensor([[[False, False, True], [True, False, False]]] * 2)
    blind = AttentionPattern.between(queries, keys, only=only).fully_masked
    assert blind is not None
    assert blind.tolist() == [[True, False], [True, True]]
    packed_keys = Packed.from_lengths([3, 1])
    assert AttentionPattern.between(queries, packed_keys).fully_masked is None
    assert AttentionPattern.between(queries, packed_keys, only=only).fully_masked is not None


def test_sentences_without_tokens_cannot_be_packed() -> None:
    with pytest.raises(InputError, match=re.escape("found lengths [3, 0]")):
        Packed.from_lengths([3, 0])
    with pytest.raises(InputError, match=re.escape("found lengths []")):
        Packed.from_lengths([])


def test_the_rows_of_a_packed_batch_are_no_longer_than_its_longest_sentence() -> None:
    layout = Packed.from_lengths([4, 9, 2])
    assert layout.token_mask.shape == (3, 9)
    assert math.prod(layout.to_rows(torch.zeros(15, 7)).shape) == 3 * 9 * 7
