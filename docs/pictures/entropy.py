"""Plot a language model's cross-entropy on the built-in corpus's French against the exact entropy of these sentences.

    python docs/pictures/entropy.py RUN VALID

RUN: the run folder that recipes/tasks.sh trained. VALID: its validation sentences. Writes entropy.svg beside this file.
"""

import sys
from pathlib import Path

import numpy as np

from heed.microworld.entropy import log_probability
from heed.plots.chart import curve
from heed.text.corpus import read_lines
from heed.text.tokenizer import Tokenizer
from heed.training.step_log import read_journal


def main() -> None:
    """Draw the plot and print its numbers."""
    run, sentences = Path(sys.argv[1]), list(read_lines(sys.argv[2]))
    tokens = sum(len(ids) + 1 for ids in Tokenizer.load(run / "tokenizer.json", "bpe").encode(sentences))
    validations = [entry for entry in read_journal(run / "journal.jsonl") if "validation_loss" in entry]
    steps = np.array([entry["step"] for entry in validations], dtype=float)
    nats = np.array([entry["validation_loss"] for entry in validations]) * tokens / len(sentences)
    entropy = -np.mean([log_probability(sentence) for sentence in sentences])
    lines = {
        f"language model: {nats[-1]:.2f}": (steps, nats),
        f"exact entropy: {entropy:.2f}": (steps, np.full(len(steps), entropy)),
    }
    title = f"Cross-entropy on {len(sentences):,} held-out French sentences"
    svg = curve(lines, "steps", "nats per sentence", title)
    Path(__file__).with_name("entropy.svg").write_text(svg, encoding="utf-8")
    points = (f"{step:.0f}: {value:.4f}" for step, value in zip(steps, nats, strict=True))
    sys.stdout.write(f"{entropy:.4f} nats by the grammar; after steps {', '.join(points)}\n")


if __name__ == "__main__":
    main()
