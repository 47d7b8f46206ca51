"""CTranslate2 as an engine: its own search over an exported model, behind the interface of ours.

Greedy search is the same as ours. In beam search CTranslate2, as we do, ranks what is under way by log-probability; it
divides by `length ** alpha` only at the end. So we have it divide by next to nothing, take all it found and rank that
by our own penalty, `((5 + length) / 6) ** alpha`. What stays different:

    the end      ours goes on until nothing that lives can still win, CTranslate2 until 2 · beam hypotheses have ended.
                 With stop = 'first' both end when nbest have; if more end at that step, CTranslate2 keeps the likeliest
    the limit    where ours makes a hypothesis end, CTranslate2 cuts it off; here it is given its end, and the score
                 that this has in a forced pass
    a prefix     a beam of CTranslate2 may end right after it only where that is the likeliest of all
    pad, bos     ours takes their probability away, CTranslate2 shares it out among the other words

Knows nothing of text.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ctranslate2
import torch

from heed.backends.base import BackendChoice, Hypothesis, Prefixes, SearchMonitor, Sources, Start
from heed.config import ModelConfig, SearchConfig
from heed.errors import InputError
from heed.interop.ctranslate2_export import POSITIONS, vocabularies
from heed.text.tokenizer import Tokenizer

_PATIENCE = 2  # hypotheses that have ended, times beam: on Multi30k 1 found a worse one in 2 % of sentences, 2 in 0.1 %
_NO_PENALTY = 1e-6  # with 0 itself CTranslate2 waits, beyond that, for the likeliest of a step to end


@dataclass(frozen=True)
class CTranslate2Backend:
    """An exported model, opened. It works on the CPU, on as many threads as torch has."""

    translator: Any  # a ctranslate2.Translator
    choice: BackendChoice
    configs: tuple[ModelConfig]
    source: list[str]  # the tokens' names, by id
    target: list[str]
    ids: dict[str, int]  # of the target's names
    tokens_per_batch: int = 4096
    can_step: bool = False

    @classmethod
    def open(
        cls,
        files: Mapping[str, bytes],
        config: ModelConfig,
        tokenizers: tuple[Tokenizer, Tokenizer],
        choice: BackendChoice,
    ) -> "CTranslate2Backend":
        """Open an exported model; it calculates in the choice's dtype, whatever the weights were saved as."""
        threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:  # once it is open, all of it is in memory
            for file, content in files.items():
                (Path(folder) / file).write_bytes(content)
            translator = ctranslate2.Translator(folder, device="cpu", compute_type=choice.dtype, intra_threads=threads)
        source, target = vocabularies(config, tokenizers)
        return cls(translator, choice, (config,), source, target, {name: number for number, name in enumerate(target)})

    @property
    def config(self) -> ModelConfig:
        """The model's settings."""
        return self.configs[0]

    def start(self, sources: Sources) -> Start[Any]:  # noqa: ARG002 - the protocol's
        """CTranslate2 searches as a whole."""
        raise InputError("ctranslate2 searches as a whole: nothing can go step by step over it")

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,  # noqa: ARG002 - the search is CTranslate2's: nothing can stand between its steps
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, best first, with our scores."""
        if config.sample:
            raise InputError(
                "search.sample = true needs the engine heed or onnx: ctranslate2 cannot draw by heed's seeds"
            )
        longest = list(max_lengths)
        self._check_lengths(sources, longest)
        count = config.nbest if config.stop == "first" else _PATIENCE * config.beam
        written = self._names(self.source, sources)
        results = self.translator.translate_batch(
            written,
            target_prefix=None if prefixes is None else self._names(self.target, prefixes),
            beam_size=config.beam,
            num_hypotheses=1 if config.beam == 1 else count,
            patience=count / config.beam,
            length_penalty=_NO_PENALTY,
            no_repeat_ngram_size=config.no_repeat_ngram or 0,
            disable_unk=True,  # pad goes by that name
            suppress_sequences=[[self.target[self.config.bos_id]]],
            return_end_token=True,
            max_input_length=0,  # nothing is cut off in silence
            max_decoding_length=max(longest) + 1,  # it counts the end
            min_decoding_length=config.min_length,
            return_scores=True,
        )
        found = []
        for result, source, length in zip(results, written, longest, strict=True):
            pairs = zip(result.hypotheses, result.scores, strict=True)
            hypotheses = [
                self._hypothesis(source, names, score, length, config, forced=prefixes is not None)
                for names, score in pairs
            ]
            found.append(sorted(hypotheses, key=lambda one: -one.score)[: config.nbest])
        return found

    def _hypothesis(
        self, source: list[str], names: list[str], score: float, longest: int, config: SearchConfig, *, forced: bool
    ) -> Hypothesis:
        """What CTranslate2 found, as ours. It counts neither a prefix nor the end of what it cuts off: we do."""
        end = self.target[self.config.eos_id]
        ended = names[-1:] == [end] and len(names) <= longest + 1
        words = names[:-1] if names[-1:] == [end] else names
        words = words[:longest]
        log_prob = score * len(names) ** _NO_PENALTY
        if forced or not ended:
            (scored,) = self.translator.score_batch([source], [words], max_input_length=0)
            log_prob = sum(scored.log_probs)
        hypothesis = Hypothesis.of([self.ids[name] for name in words], log_prob, config.length_penalty)
        return replace(hypothesis, truncated=not ended)

    def _check_lengths(self, sources: Sources, longest: Sequence[int]) -> None:
        places = POSITIONS if self.config.positions == "sinusoidal" else None
        needed = max(*longest, *(len(ids) for ids in sources)) + 1
        if places is not None and needed > places:
            raise InputError(
                f"a sequence of {needed} tokens is longer than the {places} positions of a model exported to "
                "ctranslate2: shorten it, or use --engine heed, which has no limit"
            )

    @staticmethod
    def _names(called: list[str], batch: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[called[number] for number in ids] for ids in batch]
