"""How far int8 moves the log-probabilities of a model: heed's and CTranslate2's, with the same weights and tokens.

    python benchmarks/int8_accuracy.py [--model base] [--sentences 12] [--length 20]

The error is that of the log-probabilities of random target tokens, each given the ones before it, against float32 of
the same system: an output's first tokens may agree by chance, and after one difference none do, so counting equal
tokens says little. Prints a Markdown row per system.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from translate_cpu import MODELS, TokenSequences, sentences, write_models  # beside this script

Scores = NDArray[np.float64]  # (sentences, tokens)


def heed_scores(folder: Path, engine: str, sources: TokenSequences, targets: TokenSequences) -> Scores:
    """Log-probabilities by heed's decoder steps."""
    from heed.inference.open import load  # noqa: PLC0415

    backend, rows = load(folder / "heed", engine=engine).engine.backend, []  # type: ignore[arg-type]
    for source, target in zip(sources, targets, strict=True):
        start = backend.start([source])
        newest, state, row = start.first, start.state, []
        for token in target:
            log_probs, state = start.step(newest, state)
            row.append(float(log_probs[0, token]))
            newest = newest.new_full((1,), token)
        rows.append(row)
    return np.array(rows)


def ctranslate2_scores(folder: Path, system: str, sources: TokenSequences, targets: TokenSequences) -> Scores:
    """Log-probabilities by CTranslate2's scoring."""
    import ctranslate2  # noqa: PLC0415

    names = json.loads((folder / "names.json").read_text())
    texts = [[[names[token] for token in ids] for ids in side] for side in (sources, targets)]
    compute_type = "int8" if system.endswith("int8") else "float32"
    results = ctranslate2.Translator(str(folder / system), compute_type=compute_type).score_batch(*texts)
    return np.array([result.log_probs[: len(target)] for result, target in zip(results, targets, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="base", choices=list(MODELS))
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--length", type=int, default=20, help="target tokens per sentence")
    options = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary, draw = MODELS[options.model]["vocab_size"], random.Random(1)
    sources = sentences(options.sentences, vocabulary)
    targets = [[draw.randrange(3, vocabulary) for _ in range(options.length)] for _ in sources]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_models(folder, ["ctranslate2", "ctranslate2-int8"], options.model)
        exact, quantized = (heed_scores(folder, engine, sources, targets) for engine in ("heed", "heed-int8"))
        peer_exact, peer_quantized = (
            ctranslate2_scores(folder, system, sources, targets) for system in ("ctranslate2", "ctranslate2-int8")
        )
    print(f"{options.model}: standard deviation of the log-probabilities {exact.std():.2f}")
    print("| compared | root mean square difference | largest |\n|---|---|---|")
    for name, scores, others in (
        ("heed float32, CTranslate2 float32", exact, peer_exact),
        ("heed int8, heed float32", quantized, exact),
        ("CTranslate2 int8, CTranslate2 float32", peer_quantized, peer_exact),
        ("heed int8, CTranslate2 int8", quantized, peer_quantized),
    ):
        difference = scores - others
        print(f"| {name} | {np.sqrt((difference**2).mean()):.4f} | {np.abs(difference).max():.4f} |")


if __name__ == "__main__":
    main()
