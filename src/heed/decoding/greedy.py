"""The likeliest word, then the likeliest next: the simplest search. Knows ids, not text."""

from collections.abc import Sequence

import torch

from heed.model.transformer import Transformer

_EXTRA = 50  # a translation is at most this much longer than its source, as in the paper


@torch.no_grad()
def greedy(model: Transformer, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The words that follow one another most likely for each source, all without special tokens.

    Sentences that have ended leave the batch, so a long one makes no other wait.
    """
    config, device = model.config, model.vocabulary.embedding.weight.device
    rows = [torch.tensor([*ids, config.eos_id]) for ids in sources]
    src = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_id)
    cache = model.start(src.to(device))
    written: list[list[int]] = [[] for _ in sources]
    going = list(range(len(sources)))
    ids = torch.full((len(going), 1), config.bos_id, device=device)
    while going:
        logits, cache = model.step(ids, cache)
        logits[..., [config.pad_id, config.bos_id]] = -torch.inf
        ids = logits[:, -1].argmax(-1, keepdim=True)
        for number, word in zip(going, ids[:, 0].tolist(), strict=True):
            written[number].append(word)
        stay = [
            row
            for row, number in enumerate(going)
            if written[number][-1] != config.eos_id and len(written[number]) < len(sources[number]) + _EXTRA
        ]
        if len(stay) < len(going):
            going = [going[row] for row in stay]
            kept = torch.tensor(stay, dtype=torch.int64, device=device)
            cache, ids = cache.select(kept[:, None], kept), ids[kept]
    return [words[:-1] if words[-1] == config.eos_id else words for words in written]
