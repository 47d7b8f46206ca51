from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heed import ModelConfig, SearchConfig, Transformer, Translator
from heed.backends.protocol import Hypothesis
from heed.decoding.engine import Engine
from heed.errors import DataError, HeedError
from heed.evaluation.metrics import bleu
from heed.inference.open import with_pytorch_modules
from heed.interpret.ablation import Component, ablate, ablated, components
from tests.interpret.translators import small_translator
from tests.model.examples import SHAPE, both_sides, make, padded
from tests.reference.backends import UnusedBackend

SOURCES = ["a dog runs", "the cat sees a bird", "", "a bird", "dog"]
NORMS = ("post", "pre", "sandwich")


def model_of(norm: str, device: torch.device, **settings: Any) -> tuple[Transformer, dict[str, Tensor]]:
    config = ModelConfig.model_validate({**SHAPE, "norm": norm, **settings})
    inputs = {name: padded(side) for name, side in both_sides(config, device).items()}
    return make(config, device), inputs


def logits(model: Transformer, inputs: dict[str, Tensor], *chosen: Component) -> Tensor:
    with torch.no_grad():
        if not chosen:
            return model(**inputs)
        with ablated(model, chosen[0]):
            return logits(model, inputs, *chosen[1:])


def modules(model: Transformer, path: str) -> tuple[Any, Any]:
    """A sub-layer and the layer around it, looked up without the code under test."""
    side, layer, kind = path.split(".")
    prefix = f"{side}.layers.{int(layer) - 1}"
    name = {"self": "attention", "cross": "cross_attention", "feed_forward": "feed_forward"}[kind]
    return model.get_submodule(f"{prefix}.{name}"), model.get_submodule(f"{prefix}.around_{name}")


def test_components_are_kinds_layers_sublayers_and_heads() -> None:
    config = ModelConfig.model_validate({**SHAPE, "encoder_layers": 1, "decoder_layers": 2})
    names = {
        group: [component.name for component in components(config) if component.group == group]
        for group in ("kind", "layer", "sub-layer", "head")
    }
    assert names["kind"] == [
        "encoder.*.self",
        "encoder.*.feed_forward",
        "decoder.*.self",
        "decoder.*.cross",
        "decoder.*.feed_forward",
    ]
    assert names["layer"] == ["encoder.1", "decoder.1", "decoder.2"]
    assert len(names["sub-layer"]) == 2 + 2 * 3
    assert names["head"][:3] == ["encoder.1.self.1", "encoder.1.self.2", "decoder.1.self.1"]
    assert len(names["head"]) == 5 * config.heads
    assert sum(map(len, names.values())) == len(components(config))


@pytest.mark.parametrize("norm", NORMS)
def test_ablating_a_head_equals_zeroing_its_columns_of_the_output_matrix(norm: str, device: torch.device) -> None:
    model, inputs = model_of(norm, device, positions="rotary")
    full = logits(model, inputs)
    for piece in components(model.config):
        if piece.head is not None:
            copy = deepcopy(model)
            attention, _ = modules(copy, piece.sublayers[0])
            width = model.config.head_width
            with torch.no_grad():
                attention.output.weight[:, (piece.head - 1) * width : piece.head * width] = 0
            output = logits(model, inputs, piece)
            torch.testing.assert_close(output, logits(copy, inputs), msg=piece.name)
            assert not torch.allclose(output, full), piece.name


@pytest.mark.parametrize("norm", NORMS)
def test_ablating_a_sublayer_equals_zeroing_its_last_weights(norm: str, device: torch.device) -> None:
    model, inputs = model_of(norm, device)
    for piece in components(model.config):
        if piece.head is None:
            copy = deepcopy(model)
            for path in piece.sublayers:
                sublayer, around = modules(copy, path)
                last = around.outer_norm or (sublayer.narrow if path.endswith("feed_forward") else sublayer.output)
                for parameter in last.parameters():
                    torch.nn.init.zeros_(parameter)
            torch.testing.assert_close(logits(model, inputs, piece), logits(copy, inputs), msg=piece.name)


def test_ablating_a_layer_or_kind_ablates_all_its_sublayers(device: torch.device) -> None:
    model, inputs = model_of("pre", device)
    single = {component.name: component for component in components(model.config) if component.group == "sub-layer"}
    for piece in components(model.config):
        if piece.group in ("kind", "layer"):
            sublayers = [single[path] for path in piece.sublayers]
            assert torch.equal(logits(model, inputs, piece), logits(model, inputs, *sublayers)), piece.name


def test_without_cross_attention_the_source_does_not_matter(device: torch.device) -> None:
    model, inputs = model_of("post", device)
    other = inputs | {"src": inputs["src"].flip(0)}
    (cross,) = (component for component in components(model.config) if component.name == "decoder.*.cross")
    assert not torch.allclose(logits(model, inputs), logits(model, other))
    assert torch.equal(logits(model, inputs, cross), logits(model, other, cross))


@pytest.mark.parametrize("name", ["encoder.2.self.1", "decoder.1.self.2", "decoder.2.cross.1", "decoder.1"])
def test_ablation_also_applies_to_cached_decoding(name: str, device: torch.device) -> None:
    model, inputs = model_of("pre", device)
    (piece,) = (component for component in components(model.config) if component.name == name)
    src, tgt_in = inputs["src"][:1], inputs["tgt_in"][:1, :4]
    with ablated(model, piece):
        cache = model.start(src)
        for step in range(4):
            output, cache = model.step(tgt_in[:, step : step + 1], cache)
            torch.testing.assert_close(output[:, 0], model(src, tgt_in)[:, step])


def test_nothing_stays_on_the_model_when_measuring_is_interrupted(device: torch.device) -> None:
    model, inputs = model_of("pre", device)
    full = logits(model, inputs)

    def interrupted(piece: Component) -> None:
        with ablated(model, piece):
            raise KeyboardInterrupt

    for piece in components(model.config):
        with pytest.raises(KeyboardInterrupt):
            interrupted(piece)
    assert torch.equal(logits(model, inputs), full)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def references(translator: Translator) -> list[str]:
    """The model's own translations except for two, so that no score is 0 or 100."""
    texts = translator(SOURCES)
    return [*texts[:3], texts[3][: len(texts[3]) // 2], "DIE KATZE"]


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("log-prob", lambda translator, targets: np.concatenate(translator.token_scores(SOURCES, targets)).mean()),
        (
            "exact",
            lambda translator, targets: 20 * sum(a == b for a, b in zip(translator(SOURCES), targets, strict=True)),
        ),
        ("bleu", lambda translator, targets: bleu(translator(SOURCES), targets)),
    ],
)
def test_scores_equal_those_computed_without_the_component(
    metric: Any, score: Callable[[Translator, list[str]], float]
) -> None:
    translator = small_translator()
    translator.search = SearchConfig(beam=1, max_length=9)
    targets = references(translator)
    chosen = [
        component
        for component in components(translator.model.config)
        if component.name in ("encoder.1", "decoder.*.cross")
    ]
    report = ablate(translator, SOURCES, targets, metric, chosen, resamples=50)
    assert (report.metric, report.sentences) == (metric, 5)
    assert report.whole == pytest.approx(score(translator, targets))
    if metric != "log-prob":
        assert 0 < report.whole < 100
    assert [change.piece for change in report.changes] == chosen
    for change in report.changes:
        with ablated(translator.model, change.piece):
            assert change.value == pytest.approx(score(translator, targets))
        assert change.change == change.value - report.whole
        assert change.low <= change.high


def test_intervals_are_those_of_a_plain_paired_bootstrap() -> None:
    translator = small_translator()
    sources = [f"{'a ' * (number % 4)}{('dog', 'bird', 'cat')[number % 3]} {number}" for number in range(40)]
    targets = ["DIE KATZE", "HUND"] * 20
    chosen = components(translator.model.config)[:2]
    report = ablate(translator, sources, targets, chosen=chosen, resamples=2000)
    full_scores = translator.token_scores(sources, targets)
    draw = np.random.default_rng(1)
    for change in report.changes:
        with ablated(translator.model, change.piece):
            without = translator.token_scores(sources, targets)
        leads = []
        for _ in range(2000):
            rows = draw.integers(len(sources), size=len(sources))
            tokens = sum(len(full_scores[row]) for row in rows)
            leads.append(sum(sum(without[row]) - sum(full_scores[row]) for row in rows) / tokens)
        near = 0.3 * float(np.std(leads))  # five standard errors of a quantile of this many samples
        np.testing.assert_allclose([change.low, change.high], np.quantile(leads, (0.025, 0.975)), atol=near)
        assert change.low < change.change < change.high


def test_a_head_that_does_nothing_changes_nothing() -> None:
    translator = small_translator()
    attention, _ = modules(translator.model, "decoder.2.cross")
    with torch.no_grad():
        attention.output.weight[:, 8:] = 0
    report = ablate(translator, SOURCES[:2], ["DIE KATZE", "HUND"], resamples=40)
    changes, rows = report.head_changes()
    assert rows == [f"encoder.{n}.self" for n in (1, 2)] + [
        f"decoder.{n}.{k}" for n in (1, 2, 3) for k in ("self", "cross")
    ]
    assert changes.shape == (8, 2)
    assert np.argwhere(changes == 0).tolist() == [[rows.index("decoder.2.cross"), 1]]
    (idle,) = (change for change in report.changes if change.piece.name == "decoder.2.cross.2")
    assert (idle.low, idle.high) == (0, 0)


def test_unequal_counts_other_kinds_engines_and_ensembles_are_refused() -> None:
    translator = small_translator()
    with pytest.raises(DataError, match="found 1 sources and 2 references"):
        ablate(translator, ["a"], ["A", "B"])
    with pytest.raises(DataError, match="found no sentences to score"):
        ablate(translator, [], [])
    for kind in ("encoder", "decoder"):
        with pytest.raises(HeedError, match=f"expected kind = 'encoder-decoder', found kind = '{kind}'"):
            ablate(small_translator(kind=kind), ["a"], ["A"])

    class Fixed(Engine):
        """An engine that does not run the model's modules."""

        def search(self, sources: Any, *_: Any) -> list[list[Hypothesis]]:
            return [[Hypothesis((5,), -1.0, -1.0)] for _ in sources]

    other_engine = Translator(
        translator.models, translator.tokenizers, translator.search, engine=Fixed(UnusedBackend())
    )
    with pytest.raises(
        HeedError, match=r"encoder\.\*\.self was not ablated: an engine with its own copy of the weights"
    ):
        ablate(other_engine, ["a"], ["A"], "exact")
    chosen = components(translator.model.config)[:1]
    assert (
        ablate(with_pytorch_modules(other_engine), ["a"], ["A"], "exact", chosen, resamples=9).changes[0].piece
        == chosen[0]
    )
    ensemble = Translator(translator.models * 2, translator.tokenizers)
    with pytest.raises(HeedError, match="of one model, found an ensemble of 2"):
        ablate(ensemble, ["a"], ["A"])
