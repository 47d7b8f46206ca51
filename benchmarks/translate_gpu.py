"""Translation with the paper's base model on one GPU: heed beside Hugging Face's `generate`, with the same weights.

    python benchmarks/translate_gpu.py [--batches 1 64 512] [--beams 1 4] [--profile] [--folder runs/ende --text in.txt]

6+6 layers, d_model 512, 8 heads, d_ff 2,048, vocabulary 32,000, bfloat16; sources and translations of exactly 32
tokens, EOS included. Measured from ids to ids, as a user calls either system; padding and BOS are suppressed in both.
Both are warmed up, then measured in turn: compare ratios. The weights are random unless a folder and a text are given,
so in bfloat16 many tokens are about equally probable, and rounding decides between them; the share of identical
translations is therefore printed in float32, too.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import torch
from peers import TokenSequences, Translate, generate  # beside this script

from heed import ModelConfig, SearchConfig, Transformer
from heed.artifacts.folder import read_model_folder
from heed.backends.select import inference_backend
from heed.backends.select_native import InferenceRequest
from heed.decoding.engine import Engine

GPU = torch.device("cuda")
LENGTH = 32  # of sources and translations, EOS included


def random_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(ModelConfig(vocab_size=32_000)).eval()


def random_sources(count: int, config: ModelConfig) -> TokenSequences:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(4, config.vocab_size, (count, LENGTH - 1), generator=draw).tolist()


def ours(model: Transformer, dtype: torch.dtype) -> Translate:
    """heed's GPU engine."""
    request = InferenceRequest(precision="bfloat16" if dtype == torch.bfloat16 else "float32")
    engine = Engine(inference_backend([model.to(GPU)], request))

    def translate(sources: TokenSequences, beam: int, length: int) -> TokenSequences:
        config = SearchConfig(beam=beam, min_length=length - 1, max_length=length - 1)
        return [list(best.ids) for best, *_ in engine.search(sources, config, range(len(sources)))]

    return translate


def seconds(translate: Translate, sources: TokenSequences, beam: int) -> float:
    torch.cuda.synchronize()
    began = time.monotonic()
    translate(sources, beam, LENGTH)
    torch.cuda.synchronize()
    return time.monotonic() - began


def agreement(first: TokenSequences, second: TokenSequences) -> float:
    """The share of identical translations, in percent."""
    return round(100 * sum(a == b for a, b in zip(first, second, strict=True)) / len(first), 1)


def compare(heed: Translate, peer: Translate, sources: TokenSequences, beam: int, rounds: int) -> dict[str, object]:
    began = time.monotonic()
    heed(sources, beam, LENGTH)
    first = time.monotonic() - began
    agree = agreement(heed(sources, beam, LENGTH), peer(sources, beam, LENGTH))
    times: dict[str, list[float]] = {"heed": [], "generate": []}
    for _ in range(rounds):
        times["generate"].append(seconds(peer, sources, beam))
        times["heed"].append(seconds(heed, sources, beam))
    speed = {name: len(sources) * LENGTH / statistics.median(taken) for name, taken in times.items()}
    bounds = [round(len(sources) * LENGTH / bound(times["heed"])) for bound in (max, min)]
    return {
        "batch": len(sources),
        "beam": beam,
        "heed, tokens/s": round(speed["heed"]),
        "min and max": bounds,
        "generate, tokens/s": round(speed["generate"]),
        "speedup over generate": round(speed["heed"] / speed["generate"], 2),
        "milliseconds per step": round(1000 * len(sources) / speed["heed"], 3),
        "identical translations, %": agree,
        "first call, s": round(first, 1),
    }


def profile(heed: Translate, sources: TokenSequences, beam: int) -> None:
    """Print the GPU time by kernel."""
    heed(sources, beam, LENGTH)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        heed(sources, beam, LENGTH)
    print(f"batch {len(sources)}, beam {beam}")
    print(
        profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--beams", type=int, nargs="*", default=[1, 4])
    parser.add_argument(
        "--folder", type=Path, help="a model folder instead of random weights; MarianMT must be able to express it"
    )
    parser.add_argument("--text", type=Path, help="text in its source language, one sentence per line")
    parser.add_argument("--profile", action="store_true", help="profile heed's kernels instead of measuring")
    options = parser.parse_args()
    if options.folder is None:
        model = random_model()
        sentences: Sequence[list[int]] = random_sources(max(options.batches), model.config)
    else:
        folder = read_model_folder(options.folder)
        model = folder.model().eval()
        lines = [line for line in options.text.read_text(encoding="utf-8").splitlines() if line.strip()]
        sentences = [list(ids[: LENGTH - 1]) for ids in folder.tokenizers[0].encode(lines)]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    if options.profile:
        for batch in options.batches:
            for beam in options.beams:
                profile(ours(model, torch.bfloat16), list(islice(cycle(sentences), batch)), beam)
        return
    half = ours(model, torch.bfloat16), generate(model, GPU, torch.bfloat16)
    for batch in options.batches:
        for beam in options.beams:
            result = compare(*half, list(islice(cycle(sentences), batch)), beam, options.rounds)
            print(json.dumps(result), flush=True)
    exact = ours(model, torch.float32), generate(model, GPU, torch.float32)
    sources = list(islice(cycle(sentences), 64))
    for beam in options.beams:
        agree = agreement(*(translate(sources, beam, LENGTH) for translate in exact))
        print(json.dumps({"float32": True, "batch": 64, "beam": beam, "identical translations, %": agree}), flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU, and torch finds none")
    main()
