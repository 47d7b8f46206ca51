import numpy as np
import pytest
import torch

from heed import InputError, ModelConfig, Transformer
from heed.inference.classifier import Classifier, embed
from heed.text.tokenizer import Tokenizer

BYTES = Tokenizer.train([], "bytes", 259)
TEXTS = ["a longer text than others", "b", "one\ttwo", "ab"]


def model_of(kind: str, **settings: object) -> Transformer:
    torch.manual_seed(0)
    shape = {"kind": kind, "vocab_size": 259, "d_model": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(ModelConfig.model_validate({**shape, "d_ff": 24, **settings})).eval()


def ids_of(text: str) -> list[int]:
    parts = BYTES.encode(text.split("\t"))
    return [*parts[0], *(token for part in parts[1:] for token in (2, *part)), 2]


def test_batching_never_changes_a_label_and_probabilities_sum_to_one() -> None:
    model = model_of("encoder", labels=3)
    results = Classifier(model, BYTES, ("x", "y", "z")).classify(TEXTS)
    for text, result in zip(TEXTS, results, strict=True):
        with torch.no_grad():
            hidden = model.encode(torch.tensor([ids_of(text)]))[0]
            assert model.classes is not None
            expected = model.classes.output(hidden.mean(0)).softmax(-1)
        assert list(result.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-6)
        assert sum(result.probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert result.label == "xyz"[int(expected.argmax())]


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder", "decoder"])
def test_batching_never_changes_an_embedding(kind: str) -> None:
    model = model_of(kind)
    batched = embed(model, BYTES, TEXTS)
    single = np.concatenate([embed(model, BYTES, [text]) for text in TEXTS])
    np.testing.assert_allclose(batched, single, atol=1e-5)
    assert batched.shape == (4, 16)
    assert len({tuple(row) for row in batched.round(4).tolist()}) == 4


def test_an_embedding_is_the_mean_or_the_first_hidden_state_of_the_encoder() -> None:
    model = model_of("encoder")
    with torch.no_grad():
        hidden = model.encode(torch.tensor([ids_of("ab")]))[0]
    np.testing.assert_allclose(embed(model, BYTES, ["ab"])[0], hidden.mean(0), atol=1e-6)
    np.testing.assert_allclose(embed(model, BYTES, ["ab"], "first")[0], hidden[0], atol=1e-6)


def test_empty_and_overlong_texts_are_not_embedded() -> None:
    with pytest.raises(InputError, match="text 2 is empty, or has an empty part: 'a\\\\t'"):
        embed(model_of("encoder"), BYTES, ["a", "a\t"])
    with pytest.raises(InputError, match="text 1 has 11 tokens, more than the maximum of 10"):
        embed(model_of("encoder"), BYTES, ["a" * 11], max_tokens=10)
    with pytest.raises(InputError, match="pooling = 'first' needs an encoder"):
        embed(model_of("decoder"), BYTES, ["a"], "first")
    with pytest.raises(InputError, match="found 2 labels for a model of 0 classes"):
        Classifier(model_of("encoder"), BYTES, ("x", "y"))
