"""Texts that a language model writes: a decoder alone at work.

Enters: the beginnings of texts. Leaves: how they go on, found by any of the searches that translations are found by, or
drawn at random. The beginning is a prefix that the search must say first.
"""

from collections.abc import Generator as Generator_
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heed.backends.base import Hypothesis, SearchMonitor, Start
from heed.backends.select import search_ops
from heed.backends.stepping import start_decoder_only
from heed.config import SearchConfig
from heed.decoding.decode import draw, uniform, walk
from heed.decoding.engine import find, watched
from heed.decoding.search import Rules, precise
from heed.errors import InputError
from heed.inference.open import open_folder
from heed.model.cache import KVCache
from heed.model.torch_state import generate_with_torch_defaults, torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer

_TOKENS = 4096  # scored at a time, padding included


@dataclass(frozen=True)
class Generation:
    """One text, its beginning included."""

    text: str
    log_prob: float  # of all of it, its end included
    ids: tuple[int, ...]
    truncated: bool = False  # the length limit ended it, and not the model


class Generator:
    """A language model and its tokenizer."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, search: SearchConfig | None = None, max_tokens: int = 256
    ) -> None:
        if model.decoder is None or model.encoder is not None:
            raise InputError(f"only a decoder alone writes texts of its own, and this model is an {model.config.kind}")
        self.model = model
        self.tokenizer = tokenizer
        self.search = search or SearchConfig()
        self.max_tokens = max_tokens

    @classmethod
    @torch_defaults()
    def open(cls, path: str | Path) -> "Generator":
        """The language model of a folder; on a GPU where there is one."""
        folder, model = open_folder(path)
        return cls(model, folder.tokenizers[1], folder.run.search, folder.run.data.max_tokens)

    @torch_defaults()
    def generate(
        self,
        prompts: Sequence[str],
        search: SearchConfig | None = None,
        first: int = 0,
        monitor: SearchMonitor | None = None,
    ) -> list[list[Generation]]:
        """For each beginning the best `nbest` texts, or as many drawn at random.

        first: the number of the first beginning, which decides on what is drawn. monitor: see `decoding.cancellation`.
        """
        config = search or self.search
        prefixes = self.tokenizer.encode(prompts)
        longest = [self._longest(len(prefix), config) for prefix in prefixes]

        start: Start[Any] = self._start(len(prompts))
        if monitor is not None:
            start = watched(start, range(len(prompts)), monitor)
        found = find(start, longest, config, range(first, first + len(prompts)), prefixes)
        return [self._described(hypotheses) for hypotheses in found]

    @generate_with_torch_defaults
    def stream(
        self, prompt: str = "", search: SearchConfig | None = None, monitor: SearchMonitor | None = None
    ) -> Generator_[str, None, bool]:
        """One text piece by piece as it is written, its beginning first; joined, it is the text.

        The generator's return value says whether the length limit cut the text off.
        """
        config = search or self.search
        (prefix,) = self.tokenizer.encode([prompt])
        longest = self._longest(len(prefix), config)
        start: Start[Any] = self._start(1)
        if monitor is not None:
            start = watched(start, [0], monitor)
        random = torch.from_numpy(uniform(config.seed, 0, 0, longest)).to(
            start.first.device, precise(start.first.device)
        )

        def choose(allowed: Float[Tensor, "B V"], _going: Int[Tensor, "B"], length: int) -> Int[Tensor, "B"]:
            return (
                draw(allowed, random[length : length + 1], config, start.ops) if config.sample else allowed.argmax(-1)
            )

        written: list[int] = []
        shown = ""
        rules = Rules.of(start, [longest], config, [prefix])
        truncated = False
        for [chosen] in walk(start, rules, choose):
            rules.check(chosen.number, chosen.log_prob)
            truncated = chosen.truncated
            if chosen.token != start.eos_id:
                written.append(chosen.token)
            (text,) = self.tokenizer.decode([written])
            if len(written) >= len(prefix) and (chosen.token == start.eos_id or not text.endswith("\ufffd")):
                yield text[len(shown) :]
                shown = text
        return truncated

    @torch_defaults()
    def token_scores(self, texts: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of each text, and of the end after them."""
        ids = self.tokenizer.encode(texts)
        found: list[list[float]] = [[] for _ in texts]
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        while order:
            count = max(1, _TOKENS // (len(ids[order[0]]) + 1))
            batch, order = order[:count], order[count:]
            for number, scores in zip(batch, self._forced([ids[number] for number in batch]), strict=True):
                found[number] = scores
        return found

    @torch.no_grad()
    def _forced(self, ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """The same of ids, all at once."""
        config = self.model.config

        def rows(given: list[list[int]]) -> Int[Tensor, "B T"]:
            there = [torch.tensor(row, device="cpu") for row in given]
            filled = pad_sequence(there, batch_first=True, padding_value=config.pad_id)
            return filled.to(self._device)

        tgt_in, tgt_out = rows([[config.bos_id, *one] for one in ids]), rows([[*one, config.eos_id] for one in ids])
        log_probs = self.model(tgt_in=tgt_in).float().log_softmax(-1).gather(-1, tgt_out[..., None])[..., 0]
        return [row[: len(one) + 1] for row, one in zip(log_probs.tolist(), ids, strict=True)]

    def _longest(self, prefix: int, config: SearchConfig) -> int:
        """The most tokens a text may have, its beginning included: as long as those learnt from, unless told."""
        longest = config.max_length or max(self.max_tokens, prefix + 1)
        if self.model.config.positions == "learned":
            longest = min(longest, self.model.config.max_length - 1)
        if prefix > longest:
            raise InputError(f"a beginning of {prefix} tokens is longer than the {longest} that a text may have")
        return longest

    def _described(self, hypotheses: Sequence[Hypothesis]) -> list[Generation]:
        texts = self.tokenizer.decode([one.ids for one in hypotheses])
        return [
            Generation(text, one.log_prob, one.ids, one.truncated) for text, one in zip(texts, hypotheses, strict=True)
        ]

    def _start(self, rows: int) -> Start[KVCache]:
        return start_decoder_only(self.model, rows, search_ops(self._device))

    @property
    def _device(self) -> torch.device:
        return self.model.vocabulary.embedding.weight.device
