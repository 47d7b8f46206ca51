"""The `Trace`: every activation of one forward pass, labelled with the tokens of the text and its translation.

    trace = translator.look("A dog runs.")              its translation; or look(source, target)
    trace.cross_attention[2, 0]                         layer 3, head 1: rows are target tokens, columns source tokens
    trace.part("decoder.3.cross.query").values          any activation, by the names of `parts`

Target rows are the decoder's input, `target`: ⟨s⟩, then the tokens of the text. Row t predicts token t of `predicted`:
the same tokens, then ⟨/s⟩. A trace holds attention weights and logits; everything else is computed on demand in another
pass through the same model, and is right as long as that model is unchanged. An encoder-only model has one text, the
source; the output of a classifier has one row, and a column per label.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.select import inference_backend
from heed.config import ModelConfig
from heed.decoding.engine import max_output_lengths
from heed.errors import InputError
from heed.interpret.beam_tree import BeamTree, beam_tree
from heed.interpret.lens import layer_log_probs, masked_log_probs, occlusion_effects
from heed.interpret.matrix import Matrix
from heed.interpret.observe import observe
from heed.interpret.parts import PartSpec, attentions, parts, sizes
from heed.interpret.saving import bertviz_arguments, save, trace_html
from heed.interpret.tokens import Candidate, TextModel, TokenizedText, candidates, shown
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import check_texts


@dataclass(frozen=True, eq=False)
class Lens:
    """The logit lens: what each decoder layer predicts if it is taken for the last."""

    top: list[list[list[Candidate]]]  # by layer and target row, most probable first
    log_probs: Float[np.ndarray, "L T"]  # of the tokens of `predicted`


@dataclass(frozen=True, eq=False)
class MaskedPredictions:
    """What a masked LM predicts at each position when the token there is masked."""

    top: list[list[Candidate]]  # by position, most probable first; ⟨/s⟩ is never masked
    log_probs: Float[np.ndarray, "positions"]  # of the original tokens


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass. The side that an encoder-only or decoder-only model lacks is empty: no tokens, no layers."""

    source: TokenizedText
    target: TokenizedText  # the decoder's input: the rows
    predicted: TokenizedText  # what each row is to predict; empty for an encoder-only model
    encoder_attention: Float[np.ndarray, "Le H S S"] = field(repr=False)
    decoder_attention: Float[np.ndarray, "Ld H T T"] = field(repr=False)
    cross_attention: Float[np.ndarray, "Lc H T S"] = field(repr=False)
    logits: Float[np.ndarray, "R V"] = field(repr=False)  # R = T; encoder-only: S; classifier: 1
    text_model: TextModel = field(repr=False)

    @property
    def config(self) -> ModelConfig:
        """The settings of the traced model."""
        return self.text_model.config

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of a classifier's logits; empty for any other model."""
        return self.text_model.label_names

    @property
    def source_tokens(self) -> tuple[str, ...]:
        """The encoder's input, ⟨/s⟩ included."""
        return self.source.tokens

    @property
    def target_tokens(self) -> tuple[str, ...]:
        """The decoder's input, ⟨s⟩ first: the rows of everything on the target side."""
        return self.target.tokens

    @property
    def predicted_tokens(self) -> tuple[str, ...]:
        """What each target row is to predict, ⟨/s⟩ last."""
        return self.predicted.tokens

    @property
    def source_ids(self) -> tuple[int, ...]:
        """`source_tokens` as ids."""
        return self.source.ids

    @property
    def target_ids(self) -> tuple[int, ...]:
        """`target_tokens` as ids."""
        return self.target.ids

    @property
    def predicted_ids(self) -> tuple[int, ...]:
        """`predicted_tokens` as ids."""
        return self.predicted.ids

    @property
    def log_probs(self) -> Float[np.ndarray, "R V"]:
        """The log-probability of every vocabulary entry at every row."""
        return torch.from_numpy(self.logits).log_softmax(-1).numpy()

    @property
    def predicted_log_probs(self) -> Float[np.ndarray, "T"]:
        """The log-probability of the token that follows each target row; their sum is the text's."""
        ids = np.array(self.predicted.ids, np.int64)
        return self.log_probs[np.arange(len(ids)), ids]

    def top(self, count: int = 5) -> list[list[Candidate]]:
        """The top-k tokens (of a classifier: labels) at each row: (token, id, probability)."""
        return candidates(torch.from_numpy(self.log_probs), count, self.text_model.output_tokenizer, self.labels)

    def names(self) -> list[str]:
        """The names of all parts of the pass, which `heed.interpret.parts` explains."""
        return list(parts(self.config))

    def size(self) -> int:
        """The bytes of all parts together; nothing is computed for it."""
        lengths = sizes(self.config, len(self.source.ids), len(self.target.ids))
        return sum(part.bytes(lengths) for part in parts(self.config).values())

    def part(self, name: str) -> Matrix:
        """One matrix by its name, such as `encoder.1.self.weights`; computed by a forward pass."""
        return self.parts([name])[name]

    def parts(self, names: Collection[str] | None = None) -> dict[str, Matrix]:
        """Several matrices in one forward pass; no names: all of them, `size()` bytes."""
        model = self.text_model.model
        values = observe(model, _ids(model, self.source), _ids(model, self.target), names=names)
        specs = parts(self.config)
        return {name: self._labelled(specs[name], _array(value[0])) for name, value in values.items()}

    def lens(self, count: int = 5) -> Lens:
        """The logit lens: the top-k tokens of each decoder layer."""
        model, predicted = self.text_model.model, list(self.predicted.ids)
        log_probs = layer_log_probs(model, _ids(model, self.source), _ids(model, self.target))[:, 0]
        of_predicted = log_probs[:, range(len(predicted)), predicted]
        tokenizer = self.text_model.output_tokenizer
        return Lens([candidates(layer, count, tokenizer) for layer in log_probs], _array(of_predicted))

    def holes(self, count: int = 5) -> MaskedPredictions:
        """The top-k tokens at each position when the token there is masked; of a masked LM."""
        model, config = self.text_model.model, self.config
        if config.kind != "encoder" or config.labels is not None:
            raise InputError(
                f"holes needs a masked LM (kind = 'encoder', no labels): found kind = {config.kind!r}, "
                f"labels = {config.labels}"
            )
        log_probs = masked_log_probs(model, _row(model, self.source))[:-1]
        of_original = log_probs[range(len(log_probs)), list(self.source.ids[:-1])]
        return MaskedPredictions(candidates(log_probs, count, self.text_model.output_tokenizer), _array(of_original))

    def removal(self) -> Matrix:
        """Occlusion: the change of each predicted token's log-probability (of a classifier: the top label's) without
        one source token.
        """
        model = self.text_model.model
        meaning = "change of the log-probability of the row's prediction without the column's token"
        if self.labels:
            compared = torch.tensor([[int(self.logits.argmax())]], device=model.device)
        else:
            self._require_encoder_decoder("removal")
            compared = _row(model, self.predicted)
        changes = occlusion_effects(model, _row(model, self.source), _ids(model, self.target), compared)
        return self._labelled(PartSpec("removal", ("1" if self.labels else "T", "S"), meaning), _array(changes))

    @torch_defaults()
    def beam(self) -> BeamTree:
        """The beam search for a translation of the source, as a tree."""
        self._require_encoder_decoder("beam")
        model, search, sources = self.text_model.model, self.text_model.search, [self.source.ids[:-1]]
        (max_length,) = max_output_lengths([model.config], sources, search)
        tokenizer = self.text_model.output_tokenizer
        start = inference_backend([model], whole_search=False).start(sources)
        return beam_tree(start, max_length, search, lambda token: shown(tokenizer, [token])[0])

    def for_bertviz(self) -> dict[str, Any]:
        """The arguments of bertviz.head_view and model_view: ``head_view(**trace.for_bertviz())``."""
        return bertviz_arguments(self)

    def save(self, path: str | Path, *, full: bool = False) -> None:
        """Write the trace in the format of the path's ending. full: with the values of every part."""
        save(self, Path(path), full=full)

    def _repr_html_(self) -> str:
        return trace_html(self)

    def _labelled(self, part: PartSpec, values: np.ndarray) -> Matrix:
        labels = {"S": self.source.tokens, "T": self.target.tokens, "1": ("the text",), "N": self.labels}
        if part.axes[-1] == "V":
            labels["V"] = tuple(shown(self.text_model.output_tokenizer, range(values.shape[-1])))
        return Matrix(
            part.name,
            part.meaning,
            part.axes,
            values,
            rows=labels[part.axes[-2]],
            columns=labels.get(part.axes[-1]),
            predicts=self.predicted.tokens if part.axes[-2] == "T" else None,
        )

    def _require_encoder_decoder(self, method: str) -> None:
        if (kind := self.config.kind) != "encoder-decoder":
            raise InputError(f"{method} needs an encoder-decoder, found kind = {kind!r}")


@torch_defaults()
def look(
    text_model: TextModel,
    source: str,
    target: str | None = None,
    translate: Callable[[str], Sequence[int]] | None = None,
) -> Trace:
    """The trace of a text and its translation; encoder-only and decoder-only models have one text, `source`.

    translate: source text to target ids, for a model that translates and is given no target.
    """
    model, config = text_model.model, text_model.config
    _check(text_model, source, target)
    source_tokens, target_tokens, predicted = _inputs(text_model, source, target, translate)
    paths = attentions(config)
    names = [*(f"{path}.weights" for path in paths), "logits"]
    values = observe(model, _ids(model, source_tokens), _ids(model, target_tokens), names=names)

    def layers(side: str, kind: str, shape: tuple[int, int]) -> np.ndarray:
        of_kind = [path for path in paths if path.startswith(side) and path.endswith(kind)]
        if not of_kind:
            return np.zeros((0, config.heads, *shape), np.float32)
        return np.stack([_array(values[f"{path}.weights"][0]) for path in of_kind])

    s, t = len(source_tokens.ids), len(target_tokens.ids)
    return Trace(
        source_tokens,
        target_tokens,
        predicted,
        layers("encoder", "self", (s, s)),
        layers("decoder", "self", (t, t)),
        layers("decoder", "cross", (t, s)),
        _array(values["logits"][0]),
        text_model,
    )


def _check(text_model: TextModel, source: str, target: str | None) -> None:
    config, max_tokens = text_model.config, text_model.max_tokens
    check_texts([source if target is None else target, source])
    if target is not None and config.kind != "encoder-decoder":
        raise InputError(f"kind = {config.kind!r} takes one text, found a target too: {target[:50]!r}")
    (ids,) = text_model.tokenizers[0 if config.has_encoder else 1].encode([source])
    one_line = source.splitlines() == [source] and all(text.strip() for text in _texts(config, source))
    if not one_line or len(ids) > max_tokens:
        raise InputError(
            f"look takes one line that is not blank, of at most {max_tokens} tokens; found {len(ids)} tokens: "
            f"{source[:50]!r}"
        )


def _inputs(
    text_model: TextModel, source: str, target: str | None, translate: Callable[[str], Sequence[int]] | None
) -> tuple[TokenizedText, TokenizedText, TokenizedText]:
    """The encoder's input, the decoder's input and the tokens that the decoder is to predict."""
    config = text_model.config
    source_tokenizer, target_tokenizer = text_model.tokenizers
    bos, eos = (config.bos_id,), (config.eos_id,)
    source_tokens = TokenizedText()
    if config.has_encoder:
        source_tokens, *others = (
            TokenizedText.of(source_tokenizer, ids, after=eos)
            for ids in source_tokenizer.encode(_texts(config, source))
        )
        for other in others:
            source_tokens = source_tokens.and_then(other)
    if not config.has_decoder:
        return source_tokens, TokenizedText(), TokenizedText()
    if not config.has_encoder or target is not None:
        ids: Sequence[int] = target_tokenizer.encode([source if target is None else target])[0]
    elif translate is not None:
        ids = translate(source)
    else:
        raise InputError("kind = 'encoder-decoder' needs a target: found neither `target` nor `translate`")
    return (
        source_tokens,
        TokenizedText.of(target_tokenizer, ids, before=bos),
        TokenizedText.of(target_tokenizer, ids, after=eos),
    )


def _texts(config: ModelConfig, source: str) -> list[str]:
    """The text, or a classifier's pair of texts, which a tab separates."""
    return [source] if config.labels is None else source.split("\t")


def _row(model: Transformer, tokens: TokenizedText) -> Int[Tensor, "1 n"]:
    return torch.tensor([tokens.ids], device=model.device)


def _ids(model: Transformer, tokens: TokenizedText) -> Int[Tensor, "1 n"] | None:
    """A batch of one row; none for a side that the model does not have."""
    return _row(model, tokens) if tokens.ids else None


def _array(values: Tensor) -> np.ndarray:
    """On the CPU, as float32 unless bool."""
    values = values.detach().cpu()
    return (values if values.dtype == torch.bool else values.float()).numpy()
