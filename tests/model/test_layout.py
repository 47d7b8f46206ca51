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
    """Records the size of the largest tensor that any operation returns while it is active."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for output in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(output, Tensor):
                self.size = max(self.size, output.numel())
        return result


def test_packed_attention_never_allocates_tokens_times_tokens() -> None:
    config = ModelConfig(**SHAPE)
    model = Transformer(config)
    src, src_layout = packed(sentences([3, 5] * 200, torch.device("cpu")))
    tgt_in, tgt_layout = packed(sentences([5, 3] * 200, torch.device("cpu")))
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        model(src, tgt_in, src_layout, tgt_layout).sum().backward()
    padded_size = 400 * 5 * max(config.d_ff, config.vocab_size, config.heads * 5)
    assert largest.size <= 2 * padded_size < len(src) * len(tgt_in) / 10


def test_positions_count_tokens_and_not_padding() -> None:
    layout = Padded.from_ids(torch.tensor([[0, 0, 7, 8], [7, 0, 8, 0]]), pad_id=0)
    assert layout.positions.tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert Padded.from_mask(layout.token_mask, torch.tensor([[5], [9]])).positions.tolist() == [
        [4, 4, 5, 6],
        [9, 9, 10, 10],
    ]


def test_packed_layout_of_concatenated_sequences() -> None:
    layout = Packed.from_lengths([2, 3, 1])
    assert layout.cu_seqlens.tolist() == [0, 2, 5, 6]
    assert layout.positions.tolist() == [0, 1, 0, 1, 2, 0]
    assert layout.token_mask.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    ids = torch.tensor([10, 11, 20, 21, 22, 30])
    assert layout.to_rows(ids).tolist() == [[10, 11, 0], [20, 21, 22], [30, 0, 0]]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Padded.from_mask(torch.ones(4, 3, dtype=torch.bool)), (4, 3, 2, 5)),
        (Packed.from_lengths([2, 3, 1]), (6, 2, 5)),
        (Beams.group(Padded.from_mask(torch.ones(6, 2, dtype=torch.bool)), 3), (6, 2, 2, 5)),
    ],
    ids=["padded", "packed", "beams"],
)
def test_from_rows_inverts_to_rows(layout: Padded | Packed | Beams, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    rows = layout.to_rows(x)
    assert rows.shape[:2] == layout.token_mask.shape
    assert torch.equal(layout.from_rows(rows), x)


def test_beams_concatenate_the_hypotheses_of_a_sentence() -> None:
    layout = Beams.group(Padded.from_mask(torch.ones(4, 2, dtype=torch.bool)), 2)
    assert layout.to_rows(torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_causal_mask_aligns_the_last_query_with_the_last_key() -> None:
    queries = Padded.from_mask(torch.ones(1, 2, dtype=torch.bool))
    keys = Padded.from_mask(torch.tensor([[True, False, True, True]]))
    mask = AttentionPattern.between(queries, keys, causal=True).mask
    assert mask.tolist() == [[[True, False, True, False], [True, False, True, True]]]


def test_fully_masked_marks_queries_that_may_attend_to_no_key() -> None:
    queries = Padded.from_mask(torch.ones(2, 2, dtype=torch.bool))
    keys = Padded.from_mask(torch.tensor([[True, True, False], [False, False, False]]))
    fully_masked = AttentionPattern.between(queries, keys).fully_masked
    assert fully_masked is not None
    assert fully_masked.tolist() == [[False], [True]]
    extra_mask = torch.tensor([[[False, False, True], [True, False, False]]] * 2)
    fully_masked = AttentionPattern.between(queries, keys, extra_mask=extra_mask).fully_masked
    assert fully_masked is not None
    assert fully_masked.tolist() == [[True, False], [True, True]]
    packed_keys = Packed.from_lengths([3, 1])
    assert AttentionPattern.between(queries, packed_keys).fully_masked is None
    assert AttentionPattern.between(queries, packed_keys, extra_mask=extra_mask).fully_masked is not None


def test_empty_sequences_cannot_be_packed() -> None:
    with pytest.raises(InputError, match=re.escape("found lengths [3, 0]")):
        Packed.from_lengths([3, 0])
    with pytest.raises(InputError, match=re.escape("found lengths []")):
        Packed.from_lengths([])


def test_padded_rows_of_a_packed_batch_are_as_long_as_its_longest_sequence() -> None:
    layout = Packed.from_lengths([4, 9, 2])
    assert layout.token_mask.shape == (3, 9)
    assert math.prod(layout.to_rows(torch.zeros(15, 7)).shape) == 3 * 9 * 7
