"""Invalid inputs raise an error that names the value. (Steps, masks: test_cache; lengths: test_positions.)"""

import re
from typing import Any

import pytest
import torch

from heed import ModelConfig, Transformer
from heed.errors import InputError
from heed.model.layout import Packed, Padded
from tests.model.examples import SHAPE, VOCAB

OK = torch.tensor([[3, 4, 5], [6, 7, 0]])
ONE = torch.tensor([[3, 4]])
pytestmark = pytest.mark.usefixtures("unchecked_signatures")


def encoder_decoder() -> Transformer:
    return Transformer(ModelConfig(**SHAPE)).eval()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"src": OK + VOCAB, "tgt_in": OK}, "src holds id 20, outside a vocabulary of 13 tokens"),
        ({"src": OK, "tgt_in": OK - 4}, "tgt_in holds id -4, outside a vocabulary of 13 tokens"),
        ({"src": OK.int(), "tgt_in": OK}, "src holds token ids and must be int64, found torch.int32"),
        ({"src": OK, "tgt_in": OK.float()}, "tgt_in holds token ids and must be int64, found torch.float32"),
        ({"src": OK[0], "tgt_in": OK}, "src must have shape (sentences, tokens) with no size of zero, found (3,)"),
        (
            {"src": OK[:, :0], "tgt_in": OK},
            "src must have shape (sentences, tokens) with no size of zero, found (2, 0)",
        ),
        ({"src": OK, "tgt_in": OK[:0]}, "with no size of zero, found (0, 3)"),
        ({"src": ONE, "tgt_in": OK}, "2 target sentences cannot attend to 1 source sentences"),
        ({"src": OK}, "kind = 'encoder-decoder' needs tgt_in, which was not given"),
        ({"tgt_in": OK}, "kind = 'encoder-decoder' needs src, which was not given"),
        (
            {"src": OK, "tgt_in": OK, "cross_mask": torch.ones(2, 3, 4, dtype=torch.bool)},
            "mask has shape (2, 3, 4), expected (sentences, target length, source length) = (2, 3, 3)",
        ),
        (
            {"src": OK, "tgt_in": OK, "cross_mask": torch.ones(2, 3, 3)},
            "an attention mask must be bool, True = may be attended to; found torch.float32",
        ),
        (
            {"src": OK, "tgt_in": OK, "cross_mask": torch.ones(1, 3, 3, dtype=torch.bool)},
            "cross_mask has shape (1, 3, 3), expected",
        ),
        (
            {"src": OK, "tgt_in": OK, "src_layout": Packed.from_lengths([3, 3])},
            "src must have shape (tokens) with no size of zero, found (2, 3)",
        ),
        (
            {"src": OK.flatten(), "tgt_in": OK, "src_layout": Packed.from_lengths([3, 2])},
            "src has shape (6,), but its layout is for tokens of shape (5,)",
        ),
        (
            {"src": OK, "tgt_in": OK, "tgt_layout": Padded.from_ids(ONE, 0)},
            "tgt_in has shape (2, 3), but its layout is for tokens of shape (1, 2)",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_invalid_inputs_are_rejected_with_the_argument_and_value_named(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        encoder_decoder()(**inputs)


@pytest.mark.parametrize(
    ("kind", "call", "message"),
    [
        ("decoder", lambda model: model(OK, OK), "kind = 'decoder' takes no src, which was given"),
        ("decoder", lambda model: model(OK), "kind = 'decoder' needs tgt_in, which was not given"),
        ("decoder", lambda model: model.encode(OK), "kind = 'decoder' has no encoder: encode needs"),
        ("decoder", lambda model: model.start(OK), "kind = 'decoder' takes no src, which was given"),
        ("decoder", lambda model: model.start(), "needs rows, the batch size, of at least 1, found rows = None"),
        ("decoder", lambda model: model.start(rows=0), "needs rows, the batch size, of at least 1, found rows = 0"),
        ("encoder", lambda model: model(OK, OK), "kind = 'encoder' takes no tgt_in, which was given"),
        ("encoder", lambda model: model(), "kind = 'encoder' needs src, which was not given"),
        ("encoder", lambda model: model.start(OK), "kind = 'encoder' has no decoder: start and step need"),
        ("encoder-decoder", lambda model: model.start(), "kind = 'encoder-decoder' needs src, which was not given"),
        (
            "encoder-decoder",
            lambda model: model.start(OK, rows=2),
            "kind = 'encoder-decoder' takes no rows, which was given",
        ),
        (
            "decoder",
            lambda model: model.step(OK, model.start(rows=2), cross_mask=torch.ones(2, 3, 3, dtype=torch.bool)),
            "kind = 'decoder' takes no cross_mask, which was given",
        ),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_each_kind_rejects_arguments_it_does_not_take(kind: str, call: Any, message: str) -> None:
    model = Transformer(ModelConfig.model_validate({**SHAPE, "kind": kind})).eval()
    with pytest.raises(InputError, match=re.escape(message)):
        call(model)


def test_separate_vocabularies_are_checked_separately() -> None:
    model = Transformer(ModelConfig(**SHAPE, source_vocab_size=30)).eval()
    model(OK + 17, OK)
    with pytest.raises(InputError, match="src holds id 30, outside a vocabulary of 30 tokens"):
        model(OK + 23, OK)
    with pytest.raises(InputError, match="tgt_in holds id 20, outside a vocabulary of 13 tokens"):
        model(OK, OK + 13)
