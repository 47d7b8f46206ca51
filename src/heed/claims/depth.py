"""The number of layers: whether deeper models are better (paper, table 3, C).

Each depth has the learning rate that gives it the lowest validation loss.
"""

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Verdict, is_less
from heed.claims.translation import EXACT, LOSS, Variant, finals, train_variants, with_best_rates

_LAYERS: dict[Scale, tuple[int, ...]] = {"smallest": (1, 2), "small": (1, 2, 4, 6, 12), "full": (1, 2, 4, 6, 12)}


def layers_of(number: int) -> Variant:
    """The same number of layers in encoder and decoder."""
    return {"model.encoder_layers": number, "model.decoder_layers": number}


def measure(context: Context) -> list[Panel]:
    """Exact translations and validation loss by number of layers."""
    variants = {str(number): layers_of(number) for number in _LAYERS[context.scale]}
    trained = train_variants(context, with_best_rates(context, variants))
    groups = {"Transformer": [(float(name), variant) for name, variant in trained.items()]}
    return [finals(groups, "layers of encoder and decoder", metric) for metric in (EXACT, LOSS)]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the loss falls from one layer to two, and on to the deepest model."""
    ((exact,), (loss,)) = (panel.series for panel in panels)
    described = ", ".join(f"{layers:.0f}: {exact.at(layers):.0%} and {loss.at(layers):.3f}" for layers in exact.x)
    finding = f"Exact translations and validation loss by number of layers: {described}."
    one, two, deepest = (loss.values_at(layers) for layers in (loss.x[0], loss.x[1], loss.x[-1]))
    if is_less(two, one) and is_less(deepest, two):
        return "holds", finding
    return ("holds in part" if is_less(two, one) or is_less(deepest, one) else "does not hold here"), finding
