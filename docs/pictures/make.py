"""Draws the figures of docs/looking.md from the demo's model: python docs/pictures/make.py runs/demo"""

import sys
from pathlib import Path

import heed
from heed.model.positions import sinusoids
from heed.plots.chart import distance_curve
from heed.plots.figures import dots_by_distance, head_grid, heat_map, position_picture, signed_heat_map

SENTENCE = "The animal didn't cross the street because it was too tired."
HERE = Path(__file__).parent


def draw(folder: str) -> None:
    """Trace the sentence with the model in `folder` and write the figures beside this file."""
    import torch  # noqa: PLC0415

    trace = heed.load(folder).look(SENTENCE)
    rows = [
        f"{read.strip()}→{predicted.strip()}"
        for read, predicted in zip(trace.target_tokens, trace.predicted_tokens, strict=True)
    ]
    removal = trace.removal()
    encodings = sinusoids(torch.arange(60), 64).numpy()
    pictures = {
        "encoder": head_grid(trace.encoder_attention, trace.source_tokens, trace.source_tokens, "Encoder"),
        "cross": heat_map(trace.cross_attention[0].mean(0), rows, trace.source_tokens, "Cross attention, layer 1"),
        "removal": signed_heat_map(removal.values, rows, trace.source_tokens, "Change without one source token"),
        "positions": position_picture(encodings, "Positional encodings"),
        "distance": distance_curve(dots_by_distance(encodings), "Dot product of two positional encodings by distance"),
    }
    for name, picture in pictures.items():
        (HERE / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    draw(sys.argv[1])
