"""Text to text: a model folder at work.

Enters: texts. Leaves: their translations, in the same order. Sentences of like length are translated together; white
space stays as it is; a text that holds more than the model was trained on is split where sentences end, each is
translated, and the translations are joined as the sentences were.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import overload

import torch

from heed.backends.base import Backend, Hypothesis, SearchMonitor
from heed.backends.select import inference_backend
from heed.config import SearchConfig, SplitMode, TranslateConfig
from heed.decoding.engine import Engine, max_output_lengths
from heed.decoding.forced_decoding import alignment_matrices, argmax_alignment, token_log_probs
from heed.errors import InputError
from heed.inference.translation import Translation, join_translations, space_before, stream_piece
from heed.interpret.tokens import TextModel
from heed.interpret.trace import Trace, look
from heed.model.torch_state import generate_with_torch_defaults, torch_defaults
from heed.model.transformer import Transformer
from heed.text.sentence_split import Splitter, TextSegment
from heed.text.tokenizer import Tokenizer, check_texts

Report = Callable[[int, int], None]  # pieces translated, pieces in all
_PIECE_NUMBERS = 1 << 40  # lines that may come before the numbers of their second pieces begin


class Translator:
    """A model, or several that translate together, and their tokenizers: call it with a text, or a list of them.

    engine: what translates, if not the models themselves; then there may be none, and all but translating is refused.
    splitter: what cuts texts that are too long; none: one that cuts at every sentence end.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizers: tuple[Tokenizer, Tokenizer],
        search: SearchConfig | None = None,
        max_tokens: int = 256,
        engine: Engine | None = None,
        splitter: Splitter | None = None,
        settings: TranslateConfig | None = None,
    ) -> None:
        self._models = list(models)
        self.tokenizers = tokenizers
        self.search = search or SearchConfig()
        self.max_tokens = max_tokens
        self.splitter = splitter or Splitter(max_tokens)
        self.settings = settings or TranslateConfig()
        self.engine = engine or Engine(inference_backend(self._models))

    @property
    def backend(self) -> Backend:
        """What does the arithmetic; its `choice` says why."""
        return self.engine.backend

    @property
    def models(self) -> list[Transformer]:
        """The models; an exported model has none of heed's."""
        if not self._models:
            raise InputError(
                "an exported model translates and does nothing else: to score, align, stream, suggest or look inside, "
                "open the model folder it was made from"
            )
        return self._models

    @property
    def model(self) -> Transformer:
        """The model; the first of several."""
        return self.models[0]

    @overload
    def __call__(self, texts: str) -> str: ...

    @overload
    def __call__(self, texts: list[str]) -> list[str]: ...

    def __call__(self, texts: str | list[str]) -> str | list[str]:
        """The translation of each text."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [translation.text for translation in self.translate(texts, align=False)]

    def translate(  # noqa: PLR0913 - what a user may want said of one call
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        nbest: int | None = None,
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        align: bool = True,
        split: SplitMode | None = None,
        first: int = 0,
        report: Report | None = None,
    ) -> list[Translation]:
        """The translation of each text with its score, its tokens and where they come from.

        search: all settings of the search, instead of the model folder's; beam, length_penalty and nbest one by one.
        prefixes: how the translation of each text must begin. align: False saves the pass that alignment takes.
        split: where texts are cut, instead of the model folder's setting. first: the number of the first text, if
        these are some of many: what is sampled for a text depends on its number. report: is told of the progress.
        """
        changed = {"beam": beam, "length_penalty": length_penalty, "nbest": nbest}
        settings = (search or self.search).model_dump() | {
            name: value for name, value in changed.items() if value is not None
        }
        config = SearchConfig.model_validate(settings)
        pieces = self._pieces(texts, prefixes, split)
        flat = [piece.text for of_text in pieces for piece in of_text if piece.text]
        numbers = [
            first + number + _PIECE_NUMBERS * place
            for number, of_text in enumerate(pieces)
            for place, _ in enumerate(piece for piece in of_text if piece.text)
        ]
        starts = None
        if prefixes is not None:
            each = zip(prefixes, pieces, strict=True)
            starts = self.tokenizers[1].encode([prefix for prefix, of_text in each for piece in of_text if piece.text])
        found = iter(self.translate_pieces(flat, config, starts, align=align, numbers=numbers, report=report))
        return [
            join_translations([next(found) if piece.text else None for piece in of_text], of_text) for of_text in pieces
        ]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The log-probability of each target, its end included, as the translation of its source."""
        return [sum(tokens) for tokens in self.token_scores(sources, targets)]

    def token_scores(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of each target, and of the end after them."""
        ids = self.tokenizers[0].encode(sources), self.tokenizers[1].encode(targets)
        if len(sources) != len(targets):
            raise InputError(f"{len(sources)} sources cannot be scored with {len(targets)} targets")
        scores: list[list[float]] = [[] for _ in sources]
        lengths = [len(one) + len(other) + 2 for one, other in zip(*ids, strict=True)]
        for numbers in self._batches(lengths, beam=1, budget=self.search.tokens_per_batch):
            batch = [[side[number] for number in numbers] for side in ids]
            for number, found in zip(numbers, token_log_probs(self.models, *batch), strict=True):
                scores[number] = found
        return scores

    @generate_with_torch_defaults
    def stream(self, text: str, prefix: str = "", split: SplitMode | None = None) -> Generator[str, None, bool]:
        """The greedy translation of one text, piece by piece as it is found; joined, it is the translation.

        The generator's return value says whether the length limit cut anything off.
        """
        written, truncated = "", False
        for piece in self._pieces([text], None if not prefix else [prefix], split)[0]:
            if before := space_before(piece, written) + piece.before:
                yield before
            if piece.text:
                written, cut_off = yield from stream_piece(
                    self._stepping, self.tokenizers, self.search, piece.text, prefix
                )
                truncated = truncated or cut_off
            if piece.after:
                yield piece.after
        return truncated

    @torch_defaults()
    def alternatives(
        self, text: str, prefix: str, count: int = 5, monitor: SearchMonitor | None = None
    ) -> list[Translation]:
        """Translations that begin with `prefix` and then go on differently, the likeliest next token first."""
        self._pieces([text], [prefix], "line")
        source, target = self.tokenizers
        (ids,), (start,) = source.encode([text]), target.encode([prefix])
        (longest,) = max_output_lengths([model.config for model in self.models], [ids], self.search)
        if len(start) >= longest:  # said before any work is done: a prefix takes a step for each of its tokens
            raise InputError(f"the prefix has {len(start)} tokens; the translation of this text may have {longest}")
        begun = self._stepping.start([ids])
        newest, state = begun.first, begun.state
        for token in start:
            if monitor is not None:
                monitor.before_step()
            _, state = begun.step(newest, state)
            newest = newest.new_full((1,), token)
        log_probs, _ = begun.step(newest, state)
        log_probs[:, begun.eos_id] = -torch.inf
        following = log_probs[0].topk(min(count, log_probs.shape[-1] - 3)).indices.tolist()
        forced = [[*start, token] for token in following]
        best_of_each = self.search.model_copy(update={"nbest": 1})
        return self.translate_pieces([text] * len(forced), best_of_each, forced, align=True, monitor=monitor)

    def look(self, source: str, target: str | None = None) -> Trace:
        """The trace of the forward pass over a text and the given target, or its own translation: every activation."""
        text_model = TextModel.only(self.models, self.tokenizers, self.search, self.max_tokens)

        def translate(text: str) -> Sequence[int]:
            return self.translate([text], nbest=1, align=False, split="line")[0].ids

        return look(text_model, source, target, translate)

    def pieces(self, text: str, split: SplitMode | None = None) -> list[TextSegment]:
        """What of a text is translated at once."""
        return self.splitter.split(text, split or self.settings.split, self._count)

    @property
    def _stepping(self) -> Backend:
        """What goes step by step: the backend, or the models where that only searches as a whole."""
        models = self.models
        return self.backend if self.backend.can_step else inference_backend(models)

    def _count(self, parts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizers[0].encode(parts)]

    def _pieces(
        self, texts: Sequence[str], prefixes: Sequence[str] | None, split: SplitMode | None = None
    ) -> list[list[TextSegment]]:
        check_texts(texts)
        pieces = [self.pieces(text, split) for text in texts]
        if prefixes is not None:
            check_texts(prefixes)
            if len(prefixes) != len(texts):
                raise InputError(f"{len(prefixes)} prefixes are given for {len(texts)} texts")
            for text, of_text in zip(texts, pieces, strict=True):
                if len([piece for piece in of_text if piece.text]) != 1:
                    raise InputError(
                        "a prefix needs a text that is translated at once (one line, of one sentence unless "
                        f"split='line'), found {text[:50]!r}"
                    )
        return pieces

    @torch_defaults()
    def translate_pieces(
        self,
        texts: Sequence[str],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
        *,
        align: bool,
        monitor: SearchMonitor | None = None,
        numbers: Sequence[int] | None = None,
        report: Report | None = None,
    ) -> list[Translation]:
        """Texts short enough and not empty, in batches of like length; prefixes are ids.

        numbers: what sampling, and `monitor`, know the texts by; none: their places among these.
        """
        ids = self.tokenizers[0].encode(texts)
        found: list[Translation | None] = [None] * len(texts)
        beam, done = config.nbest if config.sample else config.beam, 0
        for places in self._batches([len(one) + 1 for one in ids], beam, config.tokens_per_batch):
            batch = [ids[place] for place in places]
            starts = None if prefixes is None else [prefixes[place] for place in places]
            named = places if numbers is None else [numbers[place] for place in places]
            hypotheses = self.engine.search(batch, config, named, starts, monitor)
            for place, translation in zip(places, self._described(batch, hypotheses, align=align), strict=True):
                found[place] = translation
            done += len(places)
            if report is not None:
                report(done, len(texts))
        return [translation for translation in found if translation is not None]

    def _described(
        self, sources: Sequence[Sequence[int]], found: list[list[Hypothesis]], *, align: bool
    ) -> Iterator[Translation]:
        source, target = self.tokenizers
        flat = [(ids, one.ids) for ids, hypotheses in zip(sources, found, strict=True) for one in hypotheses]
        attention = iter(alignment_matrices(self.model, *zip(*flat, strict=True)) if align else [[] for _ in flat])
        for ids, hypotheses in zip(sources, found, strict=True):
            texts, shown = target.decode([one.ids for one in hypotheses]), tuple(source.tokens(ids))
            best, *others = (
                Translation(
                    text,
                    one.score,
                    one.log_prob,
                    one.ids,
                    tuple(target.tokens(one.ids)),
                    shown,
                    tuple(argmax_alignment(next(attention))),
                    truncated=one.truncated,
                )
                for one, text in zip(hypotheses, texts, strict=True)
            )
            yield replace(best, alternatives=tuple(others))

    def _batches(self, lengths: Sequence[int], beam: int, budget: int | None) -> Iterator[list[int]]:
        """Numbers of sentences of like length, as many at a time as the budget allows."""
        return batches_by_length(lengths, max(1, (budget or self.backend.tokens_per_batch) // beam))


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """The indices of sentences, the longest first, in batches of at most `budget` tokens, padding included.

    A sentence that is longer than that goes alone.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
