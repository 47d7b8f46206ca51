"""What happens inside a model as it turns one text into another: text to numbers that know their tokens.

    trace = translator.look("A dog runs.")              its own translation; or look(source, target): that one
    trace.cross_attention[2, 0]                         layer 3, head 1: a row a target token, a column a source token
    trace.part("decoder.3.cross.query").values          any number on the way, by the names of `parts`

Target rows are what the decoder reads, `target`: ⟨s⟩ and then the tokens of the text. What row t predicts is token t
of `predicted`: the same tokens and then ⟨/s⟩. A trace holds attention and logits; everything else is computed when it
is asked for, in another pass through the same model, and is as true as that model is unchanged. An encoder alone has
one text, the source; if it sorts texts into classes, its output has one row and a column a label.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.config import ModelConfig
from heed.decoding.steps import begin, greatest_lengths
from heed.errors import InputError
from heed.inference.translator import Translator
from heed.interpret.beam_tree import BeamTree, beam_tree
from heed.interpret.lens import hole_log_probs, layer_log_probs, removal_effects
from heed.interpret.matrix import Matrix
from heed.interpret.observe import observe
from heed.interpret.parts import Part, attentions, parts, sizes
from heed.interpret.tokens import Candidate, Tokens, candidates, shown
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer, check_texts


@dataclass(frozen=True, eq=False)
class Lens:
    """What each decoder layer would have said, had it been the last."""

    top: list[list[list[Candidate]]]  # by layer and target row, the likeliest first
    log_probs: Float[np.ndarray, "L T"]  # of the tokens that were predicted in the end


@dataclass(frozen=True, eq=False)
class Holes:
    """What a model that finds hidden words would put at each place, had the token there been hidden."""

    top: list[list[Candidate]]  # by place, the likeliest first; the end is never hidden
    log_probs: Float[np.ndarray, "places"]  # of the tokens that are there


@dataclass(frozen=True, eq=False)
class Trace:
    """One pass through a model. A side that the model does not have is empty: no tokens, no layers."""

    source: Tokens
    target: Tokens  # what the decoder reads: the rows
    predicted: Tokens  # what it predicts from each row; nothing in an encoder alone
    encoder_attention: Float[np.ndarray, "Le H S S"] = field(repr=False)
    decoder_attention: Float[np.ndarray, "Ld H T T"] = field(repr=False)
    cross_attention: Float[np.ndarray, "Lc H T S"] = field(repr=False)
    logits: Float[np.ndarray, "R V"] = field(repr=False)  # R = T, in an encoder alone S, in a classifier 1
    translator: Translator = field(repr=False)  # whose model it is
    labels: tuple[str, ...] = ()  # of a classifier: the names of the logits

    @property
    def source_tokens(self) -> tuple[str, ...]:
        """What the encoder reads, ⟨/s⟩ included."""
        return self.source.tokens

    @property
    def target_tokens(self) -> tuple[str, ...]:
        """What the decoder reads, ⟨s⟩ first: the rows of everything on the target's side."""
        return self.target.tokens

    @property
    def predicted_tokens(self) -> tuple[str, ...]:
        """What is predicted from each target row, ⟨/s⟩ last."""
        return self.predicted.tokens

    @property
    def source_ids(self) -> tuple[int, ...]:
        """The same as ids."""
        return self.source.ids

    @property
    def target_ids(self) -> tuple[int, ...]:
        """The same as ids."""
        return self.target.ids

    @property
    def predicted_ids(self) -> tuple[int, ...]:
        """The same as ids."""
        return self.predicted.ids

    @property
    def log_probs(self) -> Float[np.ndarray, "R V"]:
        """The log-probability of every word at every row."""
        return torch.from_numpy(self.logits).log_softmax(-1).numpy()

    @property
    def predicted_log_probs(self) -> Float[np.ndarray, "T"]:
        """The log-probability of the token that comes after each target row; their sum is the text's."""
        ids = np.array(self.predicted.ids, np.int64)
        return self.log_probs[np.arange(len(ids)), ids]

    def top(self, count: int = 5) -> list[list[Candidate]]:
        """The likeliest words at each row, best first: (token, id, probability); of a classifier, labels."""
        return candidates(torch.from_numpy(self.log_probs), count, self._words, self.labels)

    def names(self) -> list[str]:
        """Every part that can be asked for; `heed.interpret.parts` tells what they are."""
        return list(parts(self._model.config))

    def size(self) -> int:
        """The bytes that all parts together would take; nothing is computed for it."""
        lengths = sizes(self._model.config, len(self.source.ids), len(self.target.ids))
        return sum(part.bytes(lengths) for part in parts(self._model.config).values())

    def part(self, name: str) -> Matrix:
        """One part, computed now."""
        return self.parts([name])[name]

    def parts(self, names: Collection[str] | None = None) -> dict[str, Matrix]:
        """Several parts in one pass; no names: all of them, `size()` bytes."""
        found = observe(self._model, _given(self._model, self.source), _given(self._model, self.target), names=names)
        known = parts(self._model.config)
        return {name: self._labelled(known[name], _numbers(values[0])) for name, values in found.items()}

    def lens(self, count: int = 5) -> Lens:
        """The words that each decoder layer would choose (the logit lens)."""
        model, predicted = self._model, list(self.predicted.ids)
        log_probs = layer_log_probs(model, _given(model, self.source), _given(model, self.target))[:, 0]
        chosen = log_probs[:, range(len(predicted)), predicted]
        return Lens([candidates(layer, count, self._words) for layer in log_probs], _numbers(chosen))

    def holes(self, count: int = 5) -> Holes:
        """The words that would stand at each place, were the token there hidden; for a model that finds hidden ones."""
        config = self._model.config
        if config.kind != "encoder" or config.labels is not None:
            raise InputError(f"holes are for an encoder that says words: found {config.kind!r}, labels {config.labels}")
        log_probs = hole_log_probs(self._model, _row(self._model, self.source))[:-1]
        own = log_probs[range(len(log_probs)), list(self.source.ids[:-1])]
        return Holes(candidates(log_probs, count, self._words), _numbers(own))

    def removal(self) -> Matrix:
        """By how much the log-probability of each predicted token, or of the likeliest label, changes when one source
        token is taken away.
        """
        model, meaning = (
            self._model,
            "change of the log-probability of what the row predicts without the column's token",
        )
        if self.labels:
            asked = torch.tensor([[int(self.logits.argmax())]], device=model.vocabulary.embedding.weight.device)
        else:
            self._needs_both_sides("removal")
            asked = _row(model, self.predicted)
        effects = removal_effects(model, _row(model, self.source), _given(model, self.target), asked)
        return self._labelled(Part("removal", ("1" if self.labels else "T", "S"), meaning), _numbers(effects))

    @torch_defaults()
    def beam(self) -> BeamTree:
        """The search for a translation of the source, as a tree, by the translator's settings."""
        self._needs_both_sides("beam search")
        search, sources = self.translator.search, [self.source.ids[:-1]]
        (longest,) = greatest_lengths([self._model], sources, search)
        return beam_tree(begin([self._model], sources), longest, search, lambda token: shown(self._words, [token])[0])

    def for_bertviz(self) -> dict[str, Any]:
        """The arguments of bertviz.head_view and model_view: ``head_view(**trace.for_bertviz())``."""
        from heed.interpret.notebook import arguments  # noqa: PLC0415 - which knows what a Trace is

        return arguments(self)

    def save(self, path: str | Path, *, full: bool = False) -> None:
        """Write it down, in the format that the path's ending names. full: with the numbers of every part."""
        from heed.interpret.saving import save  # noqa: PLC0415 - which knows what a Trace is

        save(self, Path(path), full=full)

    def _repr_html_(self) -> str:
        from heed.interpret.notebook import trace_html  # noqa: PLC0415 - which knows what a Trace is

        return trace_html(self)

    @property
    def _model(self) -> Transformer:
        return self.translator.model

    @property
    def _words(self) -> Tokenizer:
        """The tokenizer whose words the logits are about."""
        return self.translator.tokenizers[1 if self._model.config.has_decoder else 0]

    def _labelled(self, part: Part, values: np.ndarray) -> Matrix:
        labels = {"S": self.source.tokens, "T": self.target.tokens, "1": ("the text",), "N": self.labels}
        if part.axes[-1] == "V":
            labels["V"] = tuple(shown(self._words, range(values.shape[-1])))
        return Matrix(
            part.name,
            part.meaning,
            part.axes,
            values,
            rows=labels[part.axes[-2]],
            columns=labels.get(part.axes[-1]),
            predicts=self.predicted.tokens if part.axes[-2] == "T" else None,
        )

    def _needs_both_sides(self, what: str) -> None:
        if (kind := self._model.config.kind) != "encoder-decoder":
            raise InputError(f"{what} needs a source and a target, and kind = {kind!r} has only one of them")


@torch_defaults()
def look(translator: Translator, source: str, target: str | None = None, labels: Sequence[str] = ()) -> Trace:
    """The trace of one text and its translation: the target given, or what the translator's search finds.

    A model that is an encoder or a decoder alone has one text, `source`. labels: of a classifier; none: numbers.
    """
    model, config = translator.model, translator.model.config
    _check(translator, source, target)
    read, rows, predicted = _sides(translator, source, target)
    paths = attentions(config)
    names = [*(f"{path}.weights" for path in paths), "logits"]
    seen = observe(model, _given(model, read), _given(model, rows), names=names)

    def layers(side: str, kind: str, shape: tuple[int, int]) -> np.ndarray:
        found = [
            _numbers(seen[f"{path}.weights"][0]) for path in paths if path.startswith(side) and path.endswith(kind)
        ]
        return np.stack(found) if found else np.zeros((0, config.heads, *shape), np.float32)

    s, t = len(read.ids), len(rows.ids)
    return Trace(
        read,
        rows,
        predicted,
        layers("encoder", "self", (s, s)),
        layers("decoder", "self", (t, t)),
        layers("decoder", "cross", (t, s)),
        _numbers(seen["logits"][0]),
        translator,
        tuple(labels) or tuple(str(number) for number in range(1, (config.labels or 0) + 1)),
    )


def _check(translator: Translator, source: str, target: str | None) -> None:
    config, longest = translator.model.config, translator.max_tokens
    check_texts([source if target is None else target, source])
    if len(translator.models) > 1:
        raise InputError(f"look shows one model at a time, found {len(translator.models)} that translate together")
    if target is not None and config.kind != "encoder-decoder":
        raise InputError(f"kind = {config.kind!r} has one text to look at, found a target too: {target[:50]!r}")
    (ids,) = translator.tokenizers[0 if config.has_encoder else 1].encode([source])
    if (
        source.splitlines() != [source]
        or not all(part.strip() for part in _texts(config, source))
        or len(ids) > longest
    ):
        raise InputError(
            f"look takes one line of words, of at most {longest} tokens; found {len(ids)} tokens: {source[:50]!r}"
        )


def _sides(translator: Translator, source: str, target: str | None) -> tuple[Tokens, Tokens, Tokens]:
    """What the encoder reads, what the decoder reads and what it is to predict."""
    config = translator.model.config
    of_source, of_target = translator.tokenizers
    first, end = (config.bos_id,), (config.eos_id,)
    read = Tokens()
    if config.has_encoder:
        read, *others = (Tokens.of(of_source, ids, after=end) for ids in of_source.encode(_texts(config, source)))
        for other in others:
            read = read.and_then(other)
    if not config.has_decoder:
        return read, Tokens(), Tokens()
    if config.has_encoder and target is None:
        written = translator.translate([source], nbest=1, align=False, split="line")[0].ids
    else:
        written = tuple(of_target.encode([source if target is None else target])[0])
    return read, Tokens.of(of_target, written, before=first), Tokens.of(of_target, written, after=end)


def _texts(config: ModelConfig, source: str) -> list[str]:
    """A classifier may read two texts at once, with a tab between."""
    return [source] if config.labels is None else source.split("\t")


def _row(model: Transformer, tokens: Tokens) -> Int[Tensor, "1 n"]:
    return torch.tensor([tokens.ids], device=model.vocabulary.embedding.weight.device)


def _given(model: Transformer, tokens: Tokens) -> Int[Tensor, "1 n"] | None:
    return _row(model, tokens) if tokens.ids else None


def _numbers(values: Tensor) -> np.ndarray:
    """On this machine's memory, as float32 unless they are bool."""
    values = values.detach().cpu()
    return (values if values.dtype == torch.bool else values.float()).numpy()
