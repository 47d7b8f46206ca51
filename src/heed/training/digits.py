"""The smallest whole: a Transformer learns to write digits backwards.

Two layers of width 32 learn it in well under a minute on two cores, from nothing but examples. Every part must work for
that: embedding, positions, all three attentions, masks, loss, gradients and cached decoding. Strings are split into
those to learn from and those to be tested on by a checksum, so no test string was ever seen.
"""

import random
import zlib
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from heed.config import ModelConfig
from heed.model.attention import attention_weights, plain_attention
from heed.model.layout import Sight
from heed.model.transformer import Transformer
from heed.training.loss import smoothed_cross_entropy
from heed.training.schedule import cosine_rate

FIRST_DIGIT = 3  # after padding, beginning and end
CONFIG = ModelConfig(
    vocab_size=FIRST_DIGIT + 10,
    d_model=32,
    heads=2,
    encoder_layers=2,
    decoder_layers=2,
    d_ff=128,
    dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
)


def strings(seed: int, *, unseen: bool, shortest: int = 3, longest: int = 7) -> Iterator[str]:
    """Endless random digit strings: those kept for the test, or those to learn from."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        text = "".join(draw.choices("0123456789", k=draw.randint(shortest, longest)))
        if (zlib.crc32(text.encode()) % 10 == 0) == unseen:
            yield text


def encode(texts: list[str], *, begin: bool = False, end: bool = False) -> Int[Tensor, "B T"]:
    """Digit strings as padded rows of ids."""
    rows = [
        torch.tensor([CONFIG.bos_id] * begin + [FIRST_DIGIT + int(digit) for digit in text] + [CONFIG.eos_id] * end)
        for text in texts
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=CONFIG.pad_id)


def decode(ids: list[int]) -> str:
    """The digits up to the end of the sequence; anything else shows as `?`."""
    words = ids[: ids.index(CONFIG.eos_id)] if CONFIG.eos_id in ids else ids
    return "".join(str(word - FIRST_DIGIT) if word >= FIRST_DIGIT else "?" for word in words)


def learn(
    seed: int, steps: int = 1000, batch: int = 128, report: Callable[[int, float], None] = lambda _step, _loss: None
) -> Transformer:
    """A model that has seen `steps` batches of examples."""
    torch.manual_seed(seed)
    model = Transformer(CONFIG).train()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    examples = strings(seed, unseen=False)
    for step in range(1, steps + 1):
        texts = [next(examples) for _ in range(batch)]
        backwards = [text[::-1] for text in texts]
        logits = model(encode(texts, end=True), encode(backwards, begin=True))
        total, tokens = smoothed_cross_entropy(logits, encode(backwards, end=True), CONFIG.pad_id, smoothing=0.0)
        loss = total / tokens
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(step, steps, warmup_steps=steps // 10, peak=0.006)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss.item())
    return model.eval()


def reverse(model: Transformer, texts: list[str]) -> list[str]:
    """What the model writes for each string: the likeliest digit, then the likeliest next, one step at a time."""
    cache = model.start(encode(texts, end=True))
    ids = torch.full((len(texts), 1), CONFIG.bos_id)
    written = []
    for _ in range(max(map(len, texts)) + 2):
        logits, cache = model.step(ids, cache)
        ids = logits[:, -1].argmax(-1, keepdim=True)
        written.append(ids)
        # Padding adds nothing to a row, and an undecided model may choose it.
        ids = ids.masked_fill(ids == CONFIG.pad_id, CONFIG.eos_id)
    return [decode(row) for row in torch.cat(written, 1).tolist()]


def exact_share(model: Transformer, seed: int, count: int = 1000) -> float:
    """The share of unseen strings that come out without a single mistake."""
    unseen = strings(seed, unseen=True)
    texts = [next(unseen) for _ in range(count)]
    return sum(out == text[::-1] for text, out in zip(texts, reverse(model, texts), strict=True)) / count


def cross_attention(model: Transformer, text: str) -> tuple[list[str], list[str], list[list[float]]]:
    """Source tokens, target tokens, and how much of each source token went into each target token.

    Looking inside needs nothing of the model but its argument `attend`: a function that does the arithmetic and keeps
    the weights. Attention runs in the order of the layers, so the last weights are those of the last layer.
    """
    seen: list[Tensor] = []

    def attend_and_keep(q: Tensor, k: Tensor, v: Tensor, sight: Sight, dropout: float) -> Tensor:
        seen.append(attention_weights(q, k, sight))
        return plain_attention(q, k, v, sight, dropout)

    written = text[::-1]
    model(encode([text], end=True), encode([written], begin=True), attend=attend_and_keep)
    return [*text, "⏎"], [*written, "⏎"], seen[-1][0].mean(0).tolist()
