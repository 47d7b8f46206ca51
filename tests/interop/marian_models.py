"""MarianMT models built, trained and saved by `transformers` and `sentencepiece`, without heed's code."""

import io
import json
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heed.microworld.corpus import corpus

UNUSUAL_TEXTS = [
    "naïve café ﬁne ½ ① Ａｂｃ",
    "Ελληνικά γράμματα",
    "犬が通りを走る。",
    "한국어 문장",
    "🙂🙃 👩‍👩‍👧",
    "é è ê ß « » … – —",
]


@dataclass(frozen=True)
class Recipe:
    """The settings of a model to build."""

    settings: dict[str, Any]
    separate: bool = False  # a vocabulary for each side
    pieces: int = 320
    pairs: int = 2000
    steps: int = 0
    batch: int = 32


def train_spm(texts: Sequence[str], pieces: int, path: Path) -> list[str]:
    """Train a SentencePiece model; returns its pieces."""
    import sentencepiece  # noqa: PLC0415 - an extra

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*texts, *UNUSUAL_TEXTS * 5]), model_writer=model, vocab_size=pieces, minloglevel=2
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def vocabulary_of(pieces: Sequence[str]) -> dict[str, int]:
    """As in OPUS-MT: EOS first, padding last. Some pieces are left out, as in the vocabularies of OPUS-MT."""
    plain = [piece for piece in dict.fromkeys(pieces) if piece not in ("<unk>", "<s>", "</s>")]
    kept = [piece for number, piece in enumerate(plain) if number % 40 != 17]
    names = ["</s>", "<unk>", ">>fra<<", *kept, "<pad>"]
    return {name: number for number, name in enumerate(names)}


def make(folder: Path, recipe: Recipe) -> Path:
    """Train a MarianMT model on the microworld corpus and save it; returns its folder."""
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer  # noqa: PLC0415 - an extra

    folder.mkdir(parents=True)
    torch.manual_seed(1)
    pairs = corpus("train", recipe.pairs, seed=1)
    source = train_spm([pair.source for pair in pairs], recipe.pieces, folder / "source.spm")
    target = train_spm([pair.target for pair in pairs], recipe.pieces, folder / "target.spm")
    vocabularies = [vocabulary_of(source), vocabulary_of(target)]
    if recipe.separate:  # MarianConfig requires the same ids of the special tokens on both sides
        for vocabulary in vocabularies:
            last = len(vocabulary) - 1
            vocabulary |= {next(name for name, number in vocabulary.items() if number == 3): last, "<pad>": 3}
    else:
        vocabularies = [vocabulary_of([*source, *target])] * 2
    for name, tokens in zip(("vocab", "target_vocab"), vocabularies, strict=True):
        (folder / f"{name}.json").write_text(json.dumps(tokens))
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    second = str(folder / "target_vocab.json") if recipe.separate else None
    with warnings.catch_warnings(action="ignore"):  # it recommends sacremoses, which is not needed
        tokenizer = MarianTokenizer(
            *files, second, source_lang="en", target_lang="fr", separate_vocabs=recipe.separate, model_max_length=128
        )
    pad = vocabularies[0]["<pad>"]
    model = MarianMTModel(
        MarianConfig(
            **{
                "vocab_size": len(vocabularies[0]),
                "decoder_vocab_size": len(vocabularies[1]),
                "share_encoder_decoder_embeddings": not recipe.separate,
                "max_position_embeddings": 128,
                "pad_token_id": pad,
                "decoder_start_token_id": pad,
                "eos_token_id": 0,
                "forced_eos_token_id": 0,
                "bos_token_id": None,
                "activation_function": "swish",
                "scale_embedding": True,
                "dropout": 0.0,
                **recipe.settings,
            }
        )
    )
    model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.max_length = None
    model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape) * 0.3)
    _train(model, tokenizer, pairs, recipe)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _train(model: Any, tokenizer: Any, pairs: Sequence[Any], recipe: Recipe) -> None:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3, betas=(0.9, 0.98))
    rng = random.Random(1)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min((step + 1) / 100, 1 - step / recipe.steps)
        batch_pairs = rng.sample(pairs, recipe.batch)
        batch = tokenizer(
            [pair.source for pair in batch_pairs],
            text_target=[pair.target for pair in batch_pairs],
            return_tensors="pt",
            padding=True,
        )
        batch["labels"] = batch["labels"].masked_fill(batch["labels"] == tokenizer.pad_token_id, -100)
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


TINY = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
