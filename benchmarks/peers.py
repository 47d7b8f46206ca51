"""The baselines of the benchmarks: models, batches and training steps without heed.

A baseline is trained by the usual script around its model: batches sorted by length and padded. It translates with its
own `generate` and heed's weights.
"""

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from heed import ModelConfig, Transformer
from heed.benchmarking.training import PairLengths, TrainStep
from heed.interop.marian import to_marian

TokenSequences = list[list[int]]
Translate = Callable[[TokenSequences, int, int], TokenSequences]  # (sources, beam, length) -> ids of translations
PaddedBatch = tuple[Tensor, Tensor, int]  # source ids, target ids, number of target tokens without padding


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, positional encoding and loss; it has dropout on attention weights, too."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        self.embedding = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_id)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        angles = torch.arange(config.max_length)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positional_encoding", torch.stack((angles.sin(), angles.cos()), -1).flatten(-2))
        self.stacks = nn.Transformer(
            width, config.heads, config.encoder_layers, config.decoder_layers, config.d_ff, config.dropout,
            batch_first=True,
        )  # fmt: skip
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        x, y = self._embed(src), self._embed(tgt_in)
        future = torch.ones(tgt_in.shape[1], tgt_in.shape[1], dtype=torch.bool, device=src.device).triu(1)
        hidden = self.stacks(
            x, y, tgt_mask=future, src_key_padding_mask=src == 0, tgt_key_padding_mask=tgt_in == 0,
            memory_key_padding_mask=src == 0, tgt_is_causal=False,
        )  # fmt: skip
        return loss(functional.linear(hidden, self.embedding.weight), tgt_out)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.dropout(
            self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.positional_encoding[: ids.shape[1]]
        )


class Marian(nn.Module):
    """Hugging Face's MarianMT."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.model = marian(config)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        output = self.model(
            input_ids=src, attention_mask=(src != 0).long(), decoder_input_ids=tgt_in,
            decoder_attention_mask=(tgt_in != 0).long(), use_cache=False,
        )  # fmt: skip
        return loss(output.logits, tgt_out)


def marian(config: ModelConfig) -> nn.Module:
    """A MarianMT with the same settings."""
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415 - only who compares with it needs it
    from transformers.utils import logging  # noqa: PLC0415

    logging.set_verbosity_error()
    return MarianMTModel(
        MarianConfig(
            vocab_size=config.source_vocab_size or config.vocab_size, decoder_vocab_size=config.vocab_size,
            d_model=config.d_model, encoder_layers=config.encoder_layers, decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads, decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, activation_function=config.activation,
            dropout=config.dropout, attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            max_position_embeddings=config.max_length, scale_embedding=True,
            share_encoder_decoder_embeddings=config.shares_embedding, tie_word_embeddings=config.tie_embeddings,
            pad_token_id=config.pad_id, bos_token_id=config.bos_id, eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id, forced_eos_token_id=config.eos_id,
        )
    )  # fmt: skip


def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
    """Label-smoothed cross-entropy, compiled together with the model."""
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), tgt_out.flatten(), ignore_index=0, label_smoothing=0.1
    )


def padded(
    pairs: list[PairLengths], config: ModelConfig, tokens: int, multiple: int, device: torch.device
) -> Iterator[PaddedBatch]:
    """Endless padded batches of random ids, sorted by length, rounded up to a multiple; at most `tokens` per side."""
    batches, rows, longest = [], [], 0
    for pair in sorted(pairs, key=lambda pair: (pair[1], pair[0])):
        if rows and (len(rows) + 1) * max(longest, *pair) > tokens:
            batches.append(rows)
            rows, longest = [], 0
        rows.append(pair)
        longest = max(longest, *pair)
    random.Random(1).shuffle(batches)
    draw, made = torch.Generator().manual_seed(0), []
    for batch in batches:
        sides = []
        for side in (0, 1):
            width = -(-max(pair[side] for pair in batch) // multiple) * multiple + side
            ids = torch.randint(4, config.vocab_size, (len(batch), width), generator=draw)
            real = torch.arange(width) < torch.tensor([pair[side] + side for pair in batch])[:, None]
            sides.append((ids * real).to(device))
        made.append((*sides, sum(pair[1] for pair in batch)))
    # torch.compile recompiles after a first batch whose two lengths are equal, so such batches come last.
    made.sort(key=lambda batch: batch[0].shape[1] == batch[1].shape[1] - 1)
    while True:
        yield from made


def peer_step(
    model: nn.Module, batches: Iterator[PaddedBatch], device: torch.device, *, compiled: bool = False
) -> TrainStep:
    """A usual training step: on a GPU bfloat16 and fused Adam; on a CPU the loss is read at every step."""
    on_gpu = device.type == "cuda"
    model = model.to(device).train()
    called = torch.compile(model, dynamic=True) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=on_gpu or None)

    def step() -> int:
        src, tgt, tokens = next(batches)
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            total = called(src, tgt[:, :-1], tgt[:, 1:])
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not on_gpu:
            total.item()
        return tokens

    return step


def generate(model: Transformer, device: torch.device, dtype: torch.dtype) -> Translate:
    """`generate` of a MarianMT with the model's weights; padding and BOS are suppressed, as in heed."""
    config = model.config
    peer = marian(config)
    weights = to_marian({name: weight.cpu() for name, weight in model.state_dict().items()}, config)
    missing = peer.load_state_dict(weights, strict=False).missing_keys
    assert all("embed_" in name or "lm_head" in name for name in missing), missing
    peer = peer.to(device, dtype).eval()

    @torch.inference_mode()
    def translate(sources: TokenSequences, beam: int, length: int) -> TokenSequences:
        rows = [torch.tensor([*ids, config.eos_id]) for ids in sources]
        src = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_id).to(device)
        written = peer.generate(
            input_ids=src, attention_mask=(src != config.pad_id).long(), num_beams=beam, do_sample=False,
            min_new_tokens=length - 1, max_new_tokens=length, suppress_tokens=[config.pad_id, config.bos_id],
        )  # fmt: skip
        return [ids[1:length] for ids in written.tolist()]

    return translate
