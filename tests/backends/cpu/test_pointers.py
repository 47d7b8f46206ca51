"""Nothing reaches compiled code that is not what the C takes it for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import heed.backends
from heed import ModelConfig
from heed.backends.cpu.attention import attention as native_attention_with_seed
from heed.backends.cpu.attention import native_attention
from heed.backends.cpu.decoder import NativeDecoder, NativeEncoder
from heed.backends.cpu.dropout import DropoutStruct, apply_dropout
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.linear import matmul
from heed.backends.cpu.loss import linear_cross_entropy
from heed.backends.cpu.packed_linear import PackedLinear
from heed.backends.cpu.pointers import array_pointer, pointer, pointer_or_none, strided_pointer
from heed.backends.cpu.search_ops import beam_step, topk
from heed.backends.torch.linear import plain_linear
from heed.errors import InputError
from heed.model.layout import AttentionPattern, Packed
from tests.model.examples import SHAPE, make, padded, sentences

CPU = torch.device("cpu")
needs_compiled_code = pytest.mark.skipif(
    missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code())
)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), r"found torch.float64 \(2, 3\) on cpu, strides \(3, 1\)"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), r"found torch.bfloat16 \(2, 3\)"),
        (torch.zeros(2, 3, device="meta"), r"found torch.float32 \(2, 3\) on meta"),
        (torch.zeros(3, 2).t(), r"found torch.float32 \(2, 3\) on cpu, strides \(1, 2\)"),
        (torch.zeros(2, 4), r"found torch.float32 \(2, 4\)"),
        (torch.zeros(6), r"found torch.float32 \(6,\)"),
    ],
    ids=["float64", "bfloat16", "meta", "transposed", "wider", "flat"],
)
def test_a_pointer_is_of_the_right_kind_or_none_at_all(given: Tensor, found: str) -> None:
    with pytest.raises(TypeError, match=f"takes contiguous torch.float32 \\(2, 3\\) on the CPU, {found}"):
        pointer(given, torch.float32, 2, 3)
    if given.is_cpu and given.dtype is torch.float32 and given.shape == (2, 3):
        assert strided_pointer(given, torch.float32, 2, 3) == given.data_ptr()
    else:
        with pytest.raises(TypeError, match=found):
            strided_pointer(given, torch.float32, 2, 3)


def test_what_is_right_gives_its_address() -> None:
    x, array = torch.zeros(2, 3), np.zeros(5, np.int32)
    assert pointer(x, torch.float32, 2, 3) == pointer_or_none(x, torch.float32, 2, 3) == x.data_ptr()
    assert pointer_or_none(None, torch.float32, 2, 3) is None
    assert array_pointer(array, np.int32, 5) == array.ctypes.data
    for wrong in (array.astype(np.int64), np.zeros(10, np.int32)[::2], np.zeros(4, np.int32)):
        with pytest.raises(TypeError, match=r"takes contiguous int32 \(5,\), found"):
            array_pointer(wrong, np.int32, 5)


def test_no_other_file_takes_an_address() -> None:
    folder = Path(heed.backends.__path__[0]) / "cpu"
    taking = {
        file.name for file in folder.rglob("*.py") if "data_ptr" in (text := file.read_text()) or "ctypes.data" in text
    }
    assert taking == {"pointers.py"}


@needs_compiled_code
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("unchecked_signatures")
def test_compiled_code_refuses_numbers_of_another_kind(dtype: torch.dtype) -> None:
    x, layout = torch.zeros(4, 8, dtype=dtype), Packed.from_lengths([3, 1])
    heads, pattern = x.view(4, 2, 4), AttentionPattern.between(layout, layout)
    for call in (
        lambda: apply_dropout(x, DropoutStruct.of(0.5, 1)),
        lambda: native_attention(heads, heads, heads, pattern, 0.0),
        lambda: matmul(x, x.t()),
        lambda: matmul(x.float(), x.float().t(), torch.zeros(4, dtype=dtype)),
        lambda: topk(x, 2),
        lambda: beam_step(torch.zeros(2, 2, dtype=torch.float64), x, 2),
        lambda: PackedLinear(x, None, int8=False),
        lambda: PackedLinear(x.float(), None, int8=False)(x),
    ):
        with pytest.raises(TypeError, match=f"compiled code takes .*found {dtype}"):
            call()


@needs_compiled_code
@pytest.mark.usefixtures("unchecked_signatures")
def test_compiled_code_refuses_sizes_that_do_not_fit_together() -> None:
    layout, heads = Packed.from_lengths([3, 1]), torch.zeros(4, 2, 4)
    pattern = AttentionPattern.between(layout, layout)
    for fewer in ((heads[:3], heads, heads), (heads, heads[:3], heads[:3])):
        with pytest.raises(InputError, match="attention in compiled code takes packed sentences of"):
            native_attention_with_seed(*fewer, pattern, DropoutStruct.of(0.0, 0))
    with pytest.raises(TypeError, match="compiled code takes"):
        native_attention_with_seed(heads, heads, heads[:3], pattern, DropoutStruct.of(0.0, 0))
    too_long = Packed(
        layout.positions, layout.sequence_ids, layout.cu_seqlens, 2
    )  # whose longest sentence has three tokens
    with pytest.raises(InputError, match="takes packed sentences of"):
        native_attention_with_seed(
            heads, heads, heads, AttentionPattern.between(layout, too_long), DropoutStruct.of(0.0, 0)
        )
    with pytest.raises(TypeError, match="compiled code takes"):
        matmul(torch.zeros(2, 3), torch.zeros(4, 2))
    with pytest.raises(TypeError, match="compiled code takes"):
        matmul(torch.zeros(2, 3), torch.zeros(3, 2), out=torch.zeros(2, 3))
    with pytest.raises(TypeError, match="compiled code takes"):
        PackedLinear(torch.zeros(4, 8), None, int8=False)(torch.zeros(2, 7))
    with pytest.raises(TypeError, match="compiled code takes"):
        beam_step(torch.zeros(2, 2, dtype=torch.float64), torch.zeros(3, 9), 2)


@needs_compiled_code
def test_attention_of_one_head_lies_right_however_torch_counts_its_strides() -> None:
    layout = Packed.from_lengths([3, 1])
    heads = torch.randn(4, 8).as_strided((4, 1, 8), (8, 3, 1))
    pattern = AttentionPattern.between(layout, layout)
    same = heads.clone(memory_format=torch.contiguous_format).view(4, 1, 8)
    assert torch.equal(
        native_attention(heads, heads, heads, pattern, 0.0), native_attention(same, same, same, pattern, 0.0)
    )


@needs_compiled_code
@torch.no_grad()
@pytest.mark.usefixtures("unchecked_signatures")
def test_a_step_refuses_an_id_outside_the_vocabulary_and_a_state_of_another_model() -> None:
    model = make(ModelConfig.model_validate(SHAPE), CPU, torch.float32)
    lean = NativeDecoder(model, plain_linear)
    state = lean.start(padded(sentences([5, 3], CPU)))
    for wrong in (-1, SHAPE["vocab_size"], 2**40):
        with pytest.raises(InputError, match=rf"a decoder step .* takes ids from 0 to 12, found \[1, {wrong}\]"):
            lean.step(torch.tensor([1, wrong]), state)
    wider = make(ModelConfig.model_validate({**SHAPE, "d_model": 32}), CPU, torch.float32)
    with pytest.raises(TypeError, match="compiled code takes"):
        NativeDecoder(wider, plain_linear).step(torch.tensor([1, 1]), state)
    lean.step(torch.tensor([1, 1]), state)


@needs_compiled_code
@pytest.mark.usefixtures("unchecked_signatures")
def test_an_encoder_refuses_a_layout_of_other_sentences() -> None:
    model = make(ModelConfig.model_validate(SHAPE), CPU, torch.float32)
    encode, src = NativeEncoder(model, int8=False), torch.tensor([3, 4, 5, 6])
    layout = Packed.from_lengths([3, 1])
    for wrong in (
        Packed(layout.positions, layout.sequence_ids + 1, layout.cu_seqlens, 3),
        Packed(layout.positions, layout.sequence_ids, layout.cu_seqlens + 1, 3),
        Packed(0 * layout.positions, layout.sequence_ids, layout.cu_seqlens, 2),
    ):
        with pytest.raises(InputError, match="an encoder pass in compiled code takes a layout of 4 tokens"):
            encode(src, wrong)


@needs_compiled_code
def test_a_loss_is_found_whatever_the_default_dtype() -> None:
    given = (torch.randn(4, 8), torch.randn(11, 8), None, torch.tensor([3, 4, 0, 10]), 0, 0.1)
    expected = linear_cross_entropy(matmul)(*given)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(linear_cross_entropy(matmul)(*given), expected)
    finally:
        torch.set_default_dtype(torch.float32)
