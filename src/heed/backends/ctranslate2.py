"""CTranslate2 backend: runs CTranslate2's search over an exported model behind heed's `Backend` protocol.

Greedy search gives the same result as heed's. In beam search CTranslate2, like heed, ranks unfinished hypotheses by
log-probability and divides by `length ** alpha` only at the end. So it runs with a negligible penalty, and its finished
hypotheses are ranked by heed's, `((5 + length) / 6) ** alpha`. The remaining differences:

    stopping     heed searches until no unfinished hypothesis can still win, CTranslate2 until 2 · beam have finished.
                 With stop = 'first' both stop once nbest have; of more in one step CTranslate2 keeps the most probable
    max length   heed forces the eos, CTranslate2 truncates; here the eos is appended and scored by a forced pass
    prefixes     a beam of CTranslate2 may finish directly after a prefix only if that is the most probable continuation
    pad, bos     heed drops their probability, CTranslate2 redistributes it over the other tokens

Knows nothing of text.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ctranslate2
import torch

from heed.backends.base import Start
from heed.backends.protocol import CPU_TOKENS, BackendChoice, Hypothesis, Prefixes, SearchMonitor, Sources
from heed.config import ModelConfig
from heed.errors import InputError
from heed.interop.ctranslate2_export import POSITIONS, vocabularies
from heed.search_config import SearchConfig
from heed.text.tokenizer import TokenizerPair

_PATIENCE = 2  # stops after this many times beam hypotheses: Multi30k, 1: worse in 2 % of sentences; 2: in 0.1 %
_NO_PENALTY = 1e-6  # with exactly 0 CTranslate2 also waits until the best hypothesis of a step has finished


@dataclass(frozen=True)
class CTranslate2Backend:
    """An opened CTranslate2 model. It runs on the CPU, with as many threads as torch."""

    translator: Any  # a ctranslate2.Translator
    choice: BackendChoice
    configs: tuple[ModelConfig]
    source_tokens: list[str]  # by id
    target_tokens: list[str]
    target_ids: dict[str, int]
    tokens_per_batch: int = CPU_TOKENS
    can_step: bool = False

    @classmethod
    def open(
        cls,
        files: Mapping[str, bytes],
        config: ModelConfig,
        tokenizers: TokenizerPair,
        choice: BackendChoice,
    ) -> "CTranslate2Backend":
        """Open an exported model; it computes in the choice's dtype, whatever the dtype of the saved weights."""
        threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:  # opening reads everything into memory
            for file, content in files.items():
                (Path(folder) / file).write_bytes(content)
            translator = ctranslate2.Translator(folder, device="cpu", compute_type=choice.dtype, intra_threads=threads)
        source, target = vocabularies(config, tokenizers)
        return cls(
            translator, choice, (config,), source, target, {token: number for number, token in enumerate(target)}
        )

    @property
    def config(self) -> ModelConfig:
        return self.configs[0]

    def start(self, sources: Sources) -> Start[Any]:  # noqa: ARG002 - the protocol's
        raise InputError("ctranslate2 only runs whole searches: it cannot be stepped")

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,  # noqa: ARG002 - CTranslate2 has no callback between steps
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, best first, with heed's scores."""
        if config.sample:
            raise InputError(
                "search.sample = true needs the engine heed or onnx: ctranslate2 cannot sample from heed's seeds"
            )
        self._check_lengths(sources, max_lengths)
        count = config.nbest if config.stop == "first" else _PATIENCE * config.beam
        batch = _to_tokens(self.source_tokens, sources)
        results = self.translator.translate_batch(
            batch,
            target_prefix=None if prefixes is None else _to_tokens(self.target_tokens, prefixes),
            beam_size=config.beam,
            num_hypotheses=1 if config.beam == 1 else count,
            patience=count / config.beam,
            length_penalty=_NO_PENALTY,
            no_repeat_ngram_size=config.no_repeat_ngram or 0,
            disable_unk=True,  # the export calls the padding token unk
            suppress_sequences=[[self.target_tokens[self.config.bos_id]]],
            return_end_token=True,
            max_input_length=0,  # never truncate
            max_decoding_length=max(max_lengths) + 1,  # including the eos
            min_decoding_length=config.min_length,
            return_scores=True,
        )
        best = []
        for result, source, max_length in zip(results, batch, max_lengths, strict=True):
            hypotheses = [
                self._hypothesis(source, tokens, score, max_length, config, forced=prefixes is not None)
                for tokens, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            best.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: config.nbest])
        return best

    def _hypothesis(
        self, source: list[str], tokens: list[str], score: float, max_length: int, config: SearchConfig, *, forced: bool
    ) -> Hypothesis:
        """A hypothesis of CTranslate2 with heed's score, which includes a prefix and the eos of a truncated output."""
        eos = self.target_tokens[self.config.eos_id]
        finished = tokens[-1:] == [eos] and len(tokens) <= max_length + 1
        output = tokens[:-1] if tokens[-1:] == [eos] else tokens
        output = output[:max_length]
        log_prob = score * len(tokens) ** _NO_PENALTY
        if forced or not finished:
            (scored,) = self.translator.score_batch([source], [output], max_input_length=0)
            log_prob = sum(scored.log_probs)
        hypothesis = Hypothesis.of([self.target_ids[token] for token in output], log_prob, config.length_penalty)
        return replace(hypothesis, truncated=not finished)

    def _check_lengths(self, sources: Sources, max_lengths: Sequence[int]) -> None:
        positions = POSITIONS if self.config.positions == "sinusoidal" else None
        needed = max(*max_lengths, *(len(ids) for ids in sources)) + 1
        if positions is not None and needed > positions:
            raise InputError(
                f"a sequence of {needed} tokens is longer than the {positions} positions of a model exported to "
                "ctranslate2: shorten it, or use --engine heed, which has no limit"
            )


def _to_tokens(vocabulary: list[str], batch: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[vocabulary[number] for number in ids] for ids in batch]
