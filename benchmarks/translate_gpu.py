"""Translating with the paper's base model on one GPU: heed beside Hugging Face's `generate`, the same weights.

    python benchmarks/translate_gpu.py [--batches 1 64 512] [--beams 1 4] [--profile] [--folder runs/ende --text in.txt]

6+6 layers of width 512, 8 heads, 2,048, 32,000 words, bfloat16; sources of 32 tokens, 32 tokens written for each, the
end included: no fewer and no more may come. From ids to ids, everything between included, as either system is called;
`generate` may not say padding and beginning, as heed may not. Both are warmed up, then measured in turns: read ratios.
The weights are random unless a folder and a text are given, so in bfloat16 many words are about equally likely, and
different roundings choose differently; how many sentences come out the same is printed in float32 too.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

import torch

from heed import ModelConfig, SearchConfig, Transformer
from heed.decoding.captured_engine import quickest_engine
from heed.interop.marian_export import to_marian
from heed.model.folder import read_model_folder

GPU = torch.device("cuda")
LENGTH = 32  # of sources and translations, the end of each included

Ids = list[list[int]]
Translate = Callable[[Ids, int], Ids]  # sources and a beam to translations, special tokens left out


def random_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(ModelConfig(vocab_size=32_000)).eval()


def random_sources(count: int, config: ModelConfig) -> Ids:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(4, config.vocab_size, (count, LENGTH - 1), generator=draw).tolist()


def ours(model: Transformer, dtype: torch.dtype) -> Translate:
    """heed's own engine for a GPU."""
    engine = quickest_engine([model.to(GPU)], "bfloat16" if dtype == torch.bfloat16 else "float32")

    def translate(sources: Ids, beam: int) -> Ids:
        config = SearchConfig(beam=beam, min_length=LENGTH - 1, max_length=LENGTH - 1)
        return [list(best.ids) for best, *_ in engine.search(sources, config, range(len(sources)))]

    return translate


def hugging_face(model: Transformer, dtype: torch.dtype) -> Translate:
    """MarianMT with the same weights."""
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415 - after its warnings have been seen to
    from transformers.utils import logging  # noqa: PLC0415

    logging.set_verbosity_error()
    config = model.config
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=config.source_vocab_size or config.vocab_size, decoder_vocab_size=config.vocab_size,
            d_model=config.d_model, encoder_layers=config.encoder_layers, decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads, decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, activation_function=config.activation,
            max_position_embeddings=config.max_length, scale_embedding=True,
            share_encoder_decoder_embeddings=config.shares_embedding, tie_word_embeddings=config.tie_embeddings,
            pad_token_id=config.pad_id, bos_token_id=config.bos_id, eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id, forced_eos_token_id=config.eos_id,
        )
    )  # fmt: skip
    weights = to_marian({name: weight.cpu() for name, weight in model.state_dict().items()}, config)
    missing = theirs.load_state_dict(weights, strict=False).missing_keys
    assert all("embed_" in name or "lm_head" in name for name in missing), missing
    theirs = theirs.to(GPU, dtype).eval()

    @torch.inference_mode()
    def translate(sources: Ids, beam: int) -> Ids:
        rows = [torch.tensor([*ids, config.eos_id]) for ids in sources]
        src = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_id).to(GPU)
        written = theirs.generate(
            input_ids=src, attention_mask=(src != config.pad_id).long(), num_beams=beam, do_sample=False,
            min_new_tokens=LENGTH - 1, max_new_tokens=LENGTH, suppress_tokens=[config.pad_id, config.bos_id],
        )  # fmt: skip
        return [ids[1:LENGTH] for ids in written.tolist()]

    return translate


def seconds(translate: Translate, sources: Ids, beam: int) -> float:
    torch.cuda.synchronize()
    began = time.monotonic()
    translate(sources, beam)
    torch.cuda.synchronize()
    return time.monotonic() - began


def same(one: Ids, other: Ids) -> float:
    """The share of sentences that are the same, in percent."""
    return round(100 * sum(a == b for a, b in zip(one, other, strict=True)) / len(one), 1)


def compare(heed: Translate, peer: Translate, sources: Ids, beam: int, rounds: int) -> dict[str, object]:
    began = time.monotonic()
    heed(sources, beam)
    first = time.monotonic() - began
    agree = same(heed(sources, beam), peer(sources, beam))
    times: dict[str, list[float]] = {"heed": [], "generate": []}
    for _ in range(rounds):
        times["generate"].append(seconds(peer, sources, beam))
        times["heed"].append(seconds(heed, sources, beam))
    speed = {name: len(sources) * LENGTH / statistics.median(taken) for name, taken in times.items()}
    bounds = [round(len(sources) * LENGTH / bound(times["heed"])) for bound in (max, min)]
    return {
        "batch": len(sources),
        "beam": beam,
        "heed, tokens a second": round(speed["heed"]),
        "lowest and highest": bounds,
        "generate, tokens a second": round(speed["generate"]),
        "times generate": round(speed["heed"] / speed["generate"], 2),
        "milliseconds a step": round(1000 * len(sources) / speed["heed"], 3),
        "same sentences, %": agree,
        "first call, s": round(first, 1),
    }


def profile(heed: Translate, sources: Ids, beam: int) -> None:
    """Where the GPU's time goes."""
    heed(sources, beam)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        heed(sources, beam)
    print(f"batch {len(sources)}, beam {beam}")
    print(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--beams", type=int, nargs="*", default=[1, 4])
    parser.add_argument(
        "--folder", type=Path, help="a model folder instead of random weights; MarianMT must be able to express it"
    )
    parser.add_argument("--text", type=Path, help="text in its source language, a sentence a line")
    parser.add_argument("--profile", action="store_true", help="show where heed's time goes, and measure nothing")
    asked = parser.parse_args()
    if asked.folder is None:
        model = random_model()
        sentences: Sequence[list[int]] = random_sources(max(asked.batches), model.config)
    else:
        folder = read_model_folder(asked.folder)
        model = folder.model().eval()
        lines = [line for line in asked.text.read_text(encoding="utf-8").splitlines() if line.strip()]
        sentences = [list(ids[: LENGTH - 1]) for ids in folder.tokenizers[0].encode(lines)]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    if asked.profile:
        for batch in asked.batches:
            for beam in asked.beams:
                profile(ours(model, torch.bfloat16), list(islice(cycle(sentences), batch)), beam)
        return
    half = ours(model, torch.bfloat16), hugging_face(model, torch.bfloat16)
    for batch in asked.batches:
        for beam in asked.beams:
            found = compare(*half, list(islice(cycle(sentences), batch)), beam, asked.rounds)
            print(json.dumps(found), flush=True)
    exact = ours(model, torch.float32), hugging_face(model, torch.float32)
    sources = list(islice(cycle(sentences), 64))
    for beam in asked.beams:
        agree = same(*(translate(sources, beam) for translate in exact))
        print(json.dumps({"float32": True, "batch": 64, "beam": beam, "same sentences, %": agree}), flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and there is none")
    main()
