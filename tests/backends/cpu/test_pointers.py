"""Tensors of another dtype, shape, device or stride than the C code expects are refused before they reach it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import heed.backends
from heed import ModelConfig
from heed.backends.cpu.attention import attention_with_seed, packed_attention
from heed.backends.cpu.decoder import NativeDecoder, NativeEncoder
from heed.backends.cpu.dropout import DropoutStruct, apply_dropout
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.linear import matmul
from heed.backends.cpu.loss import make_linear_cross_entropy
from heed.backends.cpu.packed_linear import PackedLinear
from heed.backends.cpu.pointers import array_pointer, pointer, pointer_or_none, strided_pointer
from heed.backends.cpu.search_ops import beam_step, topk
from heed.errors import InputError
from heed.model.layout import AttentionPattern, Packed
from tests.model.examples import SHAPE, make, padded, sentences

CPU = torch.device("cpu")
needs_compiled_code = pytest.mark.skipif(
    missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code())
)


@pytest.mark.parametrize(
    ("tensor", "message"),
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
def test_a_tensor_of_the_wrong_dtype_device_strides_or_shape_has_no_pointer(tensor: Tensor, message: str) -> None:
    with pytest.raises(TypeError, match=f"takes contiguous torch.float32 \\(2, 3\\) on the CPU, {message}"):
        pointer(tensor, torch.float32, 2, 3)
    if tensor.is_cpu and tensor.dtype is torch.float32 and tensor.shape == (2, 3):
        assert strided_pointer(tensor, torch.float32, 2, 3) == tensor.data_ptr()
    else:
        with pytest.raises(TypeError, match=message):
            strided_pointer(tensor, torch.float32, 2, 3)


def test_pointers_are_the_addresses_of_valid_tensors_and_arrays() -> None:
    x, array = torch.zeros(2, 3), np.zeros(5, np.int32)
    assert pointer(x, torch.float32, 2, 3) == pointer_or_none(x, torch.float32, 2, 3) == x.data_ptr()
    assert pointer_or_none(None, torch.float32, 2, 3) is None
    assert array_pointer(array, np.int32, 5) == array.ctypes.data
    for wrong in (array.astype(np.int64), np.zeros(10, np.int32)[::2], np.zeros(4, np.int32)):
        with pytest.raises(TypeError, match=r"takes contiguous int32 \(5,\), found"):
            array_pointer(wrong, np.int32, 5)


def test_only_pointers_py_takes_addresses() -> None:
    folder = Path(heed.backends.__path__[0]) / "cpu"
    files = {
        file.name for file in folder.rglob("*.py") if "data_ptr" in (text := file.read_text()) or "ctypes.data" in text
    }
    assert files == {"pointers.py"}


@needs_compiled_code
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("unchecked_signatures")
def test_compiled_code_refuses_other_dtypes_than_float32(dtype: torch.dtype) -> None:
    x, layout = torch.zeros(4, 8, dtype=dtype), Packed.from_lengths([3, 1])
    heads, pattern = x.view(4, 2, 4), AttentionPattern.between(layout, layout)
    for call in (
        lambda: apply_dropout(x, DropoutStruct.of(0.5, 1)),
        lambda: packed_attention(heads, heads, heads, pattern, 0.0),
        lambda: matmul(x, x.t()),
        lambda: matmul(x.float(), x.float().t(), torch.zeros(4, dtype=dtype)),
        lambda: topk(x, 2),
        lambda: beam_step(torch.zeros(2, 2, dtype=torch.float64), x, 2),
    ):
        with pytest.raises(TypeError, match=f"compiled code takes .*found {dtype}"):
            call()


@needs_compiled_code
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.usefixtures("unchecked_signatures")
def test_packed_linear_layers_refuse_arrays_of_other_dtypes_than_float32(dtype: type) -> None:
    x: NDArray[Any] = np.zeros((4, 8), dtype)
    weight = np.zeros((4, 8), np.float32)
    with pytest.raises(TypeError, match=f"compiled code takes contiguous float32 .*found {np.dtype(dtype)}"):
        PackedLinear(weight, None, int8=False)(x)
    biases: list[NDArray[Any] | None] = [None, np.zeros(4, dtype)]
    for bias in biases:
        with pytest.raises(TypeError, match=f"compiled code takes contiguous float32 .*found {np.dtype(dtype)}"):
            PackedLinear(x if bias is None else weight, bias, int8=False)


@needs_compiled_code
@pytest.mark.usefixtures("unchecked_signatures")
def test_compiled_code_refuses_inconsistent_shapes() -> None:
    layout, heads = Packed.from_lengths([3, 1]), torch.zeros(4, 2, 4)
    pattern = AttentionPattern.between(layout, layout)
    for qkv in ((heads[:3], heads, heads), (heads, heads[:3], heads[:3])):
        with pytest.raises(InputError, match="attention in compiled code takes packed sentences of"):
            attention_with_seed(*qkv, pattern, DropoutStruct.of(0.0, 0))
    with pytest.raises(TypeError, match="compiled code takes"):
        attention_with_seed(heads, heads, heads[:3], pattern, DropoutStruct.of(0.0, 0))
    # The longest sentence has 3 tokens, not 2.
    wrong_layout = Packed(layout.positions, layout.sequence_ids, layout.cu_seqlens, 2)
    with pytest.raises(InputError, match="takes packed sentences of"):
        attention_with_seed(
            heads, heads, heads, AttentionPattern.between(layout, wrong_layout), DropoutStruct.of(0.0, 0)
        )
    with pytest.raises(TypeError, match="compiled code takes"):
        matmul(torch.zeros(2, 3), torch.zeros(4, 2))
    with pytest.raises(TypeError, match="compiled code takes"):
        matmul(torch.zeros(2, 3), torch.zeros(3, 2), out=torch.zeros(2, 3))
    with pytest.raises(TypeError, match="compiled code takes"):
        PackedLinear(np.zeros((4, 8), np.float32), None, int8=False)(np.zeros((2, 7), np.float32))
    with pytest.raises(TypeError, match="compiled code takes"):
        beam_step(torch.zeros(2, 2, dtype=torch.float64), torch.zeros(3, 9), 2)


@needs_compiled_code
def test_attention_with_one_head_ignores_the_stride_of_the_head_axis() -> None:
    layout = Packed.from_lengths([3, 1])
    heads = torch.randn(4, 8).as_strided((4, 1, 8), (8, 3, 1))
    pattern = AttentionPattern.between(layout, layout)
    contiguous = heads.clone(memory_format=torch.contiguous_format).view(4, 1, 8)
    assert torch.equal(
        packed_attention(heads, heads, heads, pattern, 0.0),
        packed_attention(contiguous, contiguous, contiguous, pattern, 0.0),
    )


@needs_compiled_code
@torch.no_grad()
@pytest.mark.usefixtures("unchecked_signatures")
def test_a_decoder_step_refuses_ids_outside_the_vocabulary_and_a_state_of_another_model() -> None:
    model = make(ModelConfig.model_validate(SHAPE), CPU, torch.float32)
    decoder = NativeDecoder(model)
    state = decoder.start(padded(sentences([5, 3], CPU)))
    for token_id in (-1, SHAPE["vocab_size"], 2**40):
        with pytest.raises(InputError, match=rf"a decoder step .* takes ids from 0 to 12, found \[1, {token_id}\]"):
            decoder.step(torch.tensor([1, token_id]), state)
    wider = make(ModelConfig.model_validate({**SHAPE, "d_model": 32}), CPU, torch.float32)
    with pytest.raises(TypeError, match="compiled code takes"):
        NativeDecoder(wider).step(torch.tensor([1, 1]), state)
    decoder.step(torch.tensor([1, 1]), state)


@needs_compiled_code
@pytest.mark.usefixtures("unchecked_signatures")
def test_the_encoder_refuses_a_layout_that_does_not_fit_its_ids() -> None:
    model = make(ModelConfig.model_validate(SHAPE), CPU, torch.float32)
    encode, src = NativeEncoder(model, int8=False), torch.tensor([3, 4, 5, 6])
    layout = Packed.from_lengths([3, 1])
    for starts, message in (
        (layout.cu_seqlens + 1, "src has 4 tokens, but its layout is for 5"),
        (torch.tensor([1, 3, 4]), "an encoder pass in compiled code takes a layout of 4 tokens"),
        (torch.tensor([0, 5, 4]), "an encoder pass in compiled code takes a layout of 4 tokens"),
    ):
        with pytest.raises(InputError, match=message):
            encode(src, Packed(layout.positions, layout.sequence_ids, starts, 3))


@needs_compiled_code
def test_the_loss_does_not_depend_on_the_default_dtype() -> None:
    arguments = (torch.randn(4, 8), torch.randn(11, 8), None, torch.tensor([3, 4, 0, 10]), 0, 0.1, 0.0)
    expected = make_linear_cross_entropy(matmul)(*arguments)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(make_linear_cross_entropy(matmul)(*arguments), expected)
    finally:
        torch.set_default_dtype(torch.float32)
