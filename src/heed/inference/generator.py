"""Text generation with a decoder-only language model: prompts to continuations, and log-probabilities of texts.

Enters: prompts. Leaves: texts that begin with them, by the same searches that translation uses. The prompt is a prefix
that the search is forced to begin with.
"""

from collections.abc import Generator as Generator_
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Start
from heed.backends.protocol import Hypothesis, SearchMonitor
from heed.backends.select import search_ops
from heed.backends.stepping import start_decoder_only
from heed.decoding.decode import decode_steps, sample_tokens, uniform_numbers
from heed.decoding.search import Constraints, score_dtype
from heed.decoding.stepwise import monitored, run_search
from heed.errors import InputError
from heed.inference.batching import batches_by_length
from heed.inference.open import open_folder
from heed.model.cache import KVCache
from heed.model.layout import pad_rows
from heed.model.torch_state import generate_with_torch_defaults, torch_defaults
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig
from heed.text.tokenizer import Tokenizer

_TOKENS = 4096  # per scored batch, padding included


@dataclass(frozen=True)
class Generation:
    """One generated text, its prompt included."""

    text: str
    log_prob: float  # of all its tokens and eos
    ids: tuple[int, ...]
    truncated: bool = False  # the length limit ended it, not the model


class Generator:
    """A language model and its tokenizer."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, search: SearchConfig | None = None, max_tokens: int = 256
    ) -> None:
        if model.decoder is None or model.encoder is not None:
            raise InputError(
                f"generation needs a decoder-only model (kind = 'decoder'), found kind = {model.config.kind!r}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.search = search or SearchConfig()
        self.max_tokens = max_tokens

    @classmethod
    @torch_defaults()
    def open(cls, path: str | Path) -> "Generator":
        """The language model of a folder; on a GPU where there is one."""
        folder, model = open_folder(path)
        if model.config.kind != "decoder":
            raise InputError(f"{path} is not a language model: it was trained with task = {folder.run.data.task!r}")
        return cls(model, folder.tokenizers[1], folder.run.search, folder.run.data.max_tokens)

    @torch_defaults()
    def generate(
        self,
        prompts: Sequence[str],
        search: SearchConfig | None = None,
        first: int = 0,
        monitor: SearchMonitor | None = None,
    ) -> list[list[Generation]]:
        """The `nbest` best texts, or as many samples, for each prompt.

        first: the index of the first prompt; seeds sampling. monitor: called before each step; may cancel a prompt.
        """
        config = search or self.search
        prefixes = self.tokenizer.encode(prompts)
        max_lengths = [self._max_length(len(prefix), config) for prefix in prefixes]
        start: Start[Any] = self._start(len(prompts))
        if monitor is not None:
            start = monitored(start, range(len(prompts)), monitor)
        hypotheses = run_search(start, max_lengths, config, range(first, first + len(prompts)), prefixes)
        return [self._generations(of_prompt) for of_prompt in hypotheses]

    @generate_with_torch_defaults
    def stream(
        self, prompt: str = "", search: SearchConfig | None = None, monitor: SearchMonitor | None = None
    ) -> Generator_[str, None, bool]:
        """Yield one text in pieces as they are generated, the prompt first; concatenated, they are the text.

        Returns whether the length limit truncated it.
        """
        config = search or self.search
        (prefix,) = self.tokenizer.encode([prompt])
        max_length = self._max_length(len(prefix), config)
        start: Start[Any] = self._start(1)
        if monitor is not None:
            start = monitored(start, [0], monitor)
        random = torch.from_numpy(uniform_numbers(config.seed, 0, 0, max_length)).to(
            start.first.device, score_dtype(start.first.device)
        )

        def choose(allowed: Float[Tensor, "B V"], _live: Int[Tensor, "B"], step: int) -> Int[Tensor, "B"]:
            if not config.sample:
                return allowed.argmax(-1)
            return sample_tokens(allowed, random[step : step + 1], config, start.ops)

        written: list[int] = []
        shown = ""
        constraints = Constraints.of(start, [max_length], config, [prefix])
        truncated = False
        for [chosen] in decode_steps(start, constraints, choose):
            constraints.check(chosen.sentence, chosen.log_prob)
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
        """The log-probability of each token of each text, and of eos."""
        ids = self.tokenizer.encode(texts)
        log_probs: list[list[float]] = [[] for _ in texts]
        for indices in batches_by_length([len(sequence) + 1 for sequence in ids], _TOKENS):
            for index, scores in zip(indices, self._token_log_probs([ids[index] for index in indices]), strict=True):
                log_probs[index] = scores
        return log_probs

    @torch.no_grad()
    def _token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        config, device = self.model.config, self.model.device
        tgt_in = pad_rows(([config.bos_id, *ids] for ids in sequences), config.pad_id, device)
        tgt_out = pad_rows(([*ids, config.eos_id] for ids in sequences), config.pad_id, device)
        log_probs = self.model(tgt_in=tgt_in).float().log_softmax(-1).gather(-1, tgt_out[..., None])[..., 0]
        return [row[: len(ids) + 1] for row, ids in zip(log_probs.tolist(), sequences, strict=True)]

    def _max_length(self, prompt_length: int, config: SearchConfig) -> int:
        """`search.max_length`, or else the maximum length of training texts; the prompt is included."""
        max_length = config.max_length or max(self.max_tokens, prompt_length + 1)
        if self.model.config.positions == "learned":
            max_length = min(max_length, self.model.config.max_length - 1)
        if prompt_length > max_length:
            raise InputError(f"the prompt has {prompt_length} tokens, more than the limit of {max_length} for a text")
        return max_length

    def _generations(self, hypotheses: Sequence[Hypothesis]) -> list[Generation]:
        texts = self.tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
        return [
            Generation(text, hypothesis.log_prob, hypothesis.ids, hypothesis.truncated)
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]

    def _start(self, rows: int) -> Start[KVCache]:
        return start_decoder_only(self.model, rows, search_ops(self.model.device))
