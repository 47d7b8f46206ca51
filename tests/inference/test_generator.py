import math

import pytest
import torch

from heed import InputError, ModelConfig, SearchConfig, Transformer
from heed.inference.generator import Generator
from heed.text.tokenizer import Tokenizer

BYTES = Tokenizer.train([], "bytes", 259)


def language_model(seed: int = 0, **settings: object) -> Transformer:
    torch.manual_seed(seed)
    shape = {"kind": "decoder", "vocab_size": 259, "d_model": 16, "heads": 2, "decoder_layers": 2, "d_ff": 24}
    model = Transformer(ModelConfig.model_validate({**shape, "tie_embeddings": False, **settings})).eval()
    with torch.no_grad():
        bias = model.vocabulary.output_projection()[1]
        assert bias is not None
        bias[2] += 2.0  # so that EOS is predicted
    return model


def uncached(model: Transformer, ids: list[int]) -> torch.Tensor:
    """The log-probabilities after each id, from one forward pass."""
    with torch.no_grad():
        return model(tgt_in=torch.tensor([[1, *ids]]))[0].log_softmax(-1)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_cached_generation_equals_uncached(positions: str) -> None:
    model = language_model(positions=positions)
    (generation,) = Generator(model, BYTES, SearchConfig(beam=1, max_length=30)).generate(["ab"])[0]
    ids = list(BYTES.encode(["ab"])[0])
    while len(ids) < 30:
        log_probs = uncached(model, ids)[-1]
        log_probs[:2] = -math.inf
        if (token := int(log_probs.argmax())) == 2:
            break
        ids.append(token)
    assert list(generation.ids) == ids
    forced = uncached(model, ids)
    total = sum(forced[position, token].item() for position, token in enumerate([*ids, 2]))
    assert generation.log_prob == pytest.approx(total, abs=1e-4)


def test_beam_search_generates_nbest_texts_at_least_as_probable_as_greedy() -> None:
    generator = Generator(language_model(3), BYTES, max_tokens=20)
    (greedy,) = generator.generate(["a"], SearchConfig(beam=1, length_penalty=0.0))[0]
    beams = generator.generate(["a"], SearchConfig(beam=8, nbest=3, length_penalty=0.0))[0]
    assert beams[0].log_prob >= greedy.log_prob - 1e-5
    assert len({generation.ids for generation in beams}) == 3
    assert [generation.log_prob for generation in beams] == sorted(
        (generation.log_prob for generation in beams), reverse=True
    )


def test_samples_depend_on_the_seed_and_the_index_of_the_prompt() -> None:
    generator = Generator(language_model(), BYTES, max_tokens=12)
    search = SearchConfig(sample=True, nbest=2, seed=5)
    generations = generator.generate(["a", "b"], search)
    assert generator.generate(["a", "b"], search) == generations
    assert [generation.ids for generation in generator.generate(["b"], search, first=1)[0]] == [
        generation.ids for generation in generations[1]
    ]
    assert generator.generate(["a", "b"], search.model_copy(update={"seed": 6})) != generations


def test_low_temperature_and_top_k_of_one_are_greedy() -> None:
    generator = Generator(language_model(), BYTES, max_tokens=12)
    greedy = generator.generate([""], SearchConfig(beam=1))[0][0].text
    for settings in ({"top_k": 1}, {"temperature": 1e-4}, {"top_p": 1e-6}):
        assert generator.generate([""], SearchConfig(sample=True, **settings))[0][0].text == greedy


@pytest.mark.parametrize("search", [SearchConfig(beam=1), SearchConfig(sample=True, seed=3)])
def test_a_stream_joined_is_the_text(search: SearchConfig) -> None:
    generator = Generator(language_model(1), BYTES, max_tokens=20)
    pieces = list(generator.stream("é", search))
    assert "".join(pieces) == generator.generate(["é"], search)[0][0].text
    assert pieces[0].startswith("é")


def test_streaming_from_a_model_that_returns_nan_is_refused() -> None:
    model = language_model()
    with torch.no_grad():
        model.vocabulary.embedding.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="sentence 0 has log-probability"):
        list(Generator(model, BYTES, SearchConfig(beam=1, max_length=5)).stream("a"))


@pytest.mark.parametrize("at_once", [4096, 12])
def test_batched_scores_equal_those_of_each_text_alone(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.inference.generator._TOKENS", at_once)
    model = language_model()
    texts = ["a", "", "abc def", "xy"]
    for text, scores in zip(texts, Generator(model, BYTES).token_scores(texts), strict=True):
        ids = BYTES.encode([text])[0]
        expected = uncached(model, ids)[torch.arange(len(ids) + 1), torch.tensor([*ids, 2])]
        torch.testing.assert_close(torch.tensor(scores), expected)


def test_generation_refuses_encoders_and_overlong_prompts() -> None:
    encoder = Transformer(ModelConfig(kind="encoder", vocab_size=259, d_model=8, heads=1, encoder_layers=1, d_ff=8))
    with pytest.raises(InputError, match="found kind = 'encoder'"):
        Generator(encoder, BYTES)
    with pytest.raises(InputError, match="the prompt has 6 tokens, more than the limit of 5"):
        Generator(language_model(), BYTES).generate(["abcdef"], SearchConfig(max_length=5))
