"""Model folders to the models that a server has: what each can do, and which one translates what to what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from heed.artifacts.folder import ModelFolder, read_model_folder
from heed.backends.base import BackendChoice
from heed.backends.select import inference_backend
from heed.config import SearchConfig
from heed.errors import ConfigError
from heed.inference.classifier import Classifier
from heed.inference.generator import Generator
from heed.inference.open import load, model_on_device, read_translation_folder
from heed.inference.translator import Translator
from heed.interpret.tokens import TextModel
from heed.interpret.trace import Trace, look
from heed.model.transformer import Transformer, copy_sharing_weights
from heed.serving.languages import AUTO, is_code, nearest_code
from heed.serving.provenance import TrainedOn, examples_in, trained_on
from heed.text.language_identification import LanguageDetector
from heed.text.tokenizer import Tokenizer

UNNAMED = ("source", "target")  # language names of a model whose folder does not name its languages


@dataclass(frozen=True, eq=False)
class ServedTranslator:
    """An encoder-decoder model and its two languages."""

    path: Path
    source: str
    target: str
    translator: Translator
    profiles: Mapping[str, str]  # language to trigrams, where the model was trained with validation texts
    trained: TrainedOn | None = None
    examples: Sequence[str] = ()  # to try it with
    abilities: ClassVar[tuple[str, ...]] = ("translate", "embed", "look")  # the routes it answers
    task: ClassVar[str] = "translate"

    @property
    def name(self) -> str:
        """What requests and answers call it."""
        return _name(self.path)

    @property
    def choice(self) -> BackendChoice:
        """The backend that translates, and why."""
        return self.translator.backend.choice

    @property
    def model(self) -> Transformer:
        """The network, for what is not translation."""
        return self.translator.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the source language."""
        return self.translator.tokenizers[0]

    @property
    def max_tokens(self) -> int:
        """Longest source sentence."""
        return self.translator.max_tokens

    def trace(self, text: str, translation: str | None = None) -> Trace:
        """What happens inside, by modules of its own."""
        return self.looker.look(text, translation)

    def tokens(self, text: str, translation: str | None = None) -> int:
        """Length of what a trace would show, on its longer side."""
        sides = zip(self.translator.tokenizers, (text, translation or ""), strict=True)
        return max(len(side.encode([words])[0]) for side, words in sides)

    @cached_property
    def looker(self) -> Translator:
        """A translator with modules of its own around the same weights. A trace sets hooks on modules while it runs:
        translations that run meanwhile must not call them.
        """
        models = [copy_sharing_weights(model) for model in self.translator.models]
        return Translator(models, self.translator.tokenizers, self.translator.search, self.translator.max_tokens)


@dataclass(frozen=True, eq=False)
class ServedLmOrClassifier:
    """A decoder-only model (it generates) or an encoder-only one (it embeds, and classifies if it was trained to)."""

    path: Path
    task: str
    model: Transformer
    tokenizer: Tokenizer
    max_tokens: int
    generator: Generator | None = None  # of a language model
    classifier: Classifier | None = None
    trained: TrainedOn | None = None

    @classmethod
    def of(cls, folder: ModelFolder, search: Mapping[str, Any]) -> "ServedLmOrClassifier":
        """The model of a folder; search: settings that override the folder's."""
        model = model_on_device(folder)
        data, tokenizer = folder.run.data, folder.tokenizers[1]
        generator = classifier = None
        if model.decoder is not None:
            settings = SearchConfig.model_validate(folder.run.search.model_dump() | dict(search))
            generator = Generator(model, tokenizer, settings, data.max_tokens)
        if data.labels:
            classifier = Classifier(model, tokenizer, data.labels, data.max_tokens)
        return cls(
            folder.path, data.task, model, tokenizer, data.max_tokens, generator, classifier, trained_on(folder.trained)
        )

    @property
    def name(self) -> str:
        """What requests and answers call it."""
        return _name(self.path)

    @property
    def choice(self) -> BackendChoice:
        """The backend that runs it, and why."""
        return inference_backend([self.model]).choice

    @property
    def abilities(self) -> tuple[str, ...]:
        """The routes it answers."""
        own = {"generate": self.generator, "classify": self.classifier}
        return (*(route for route, there in own.items() if there is not None), "embed", "look")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of a classifier."""
        return self.classifier.labels if self.classifier is not None else ()

    def trace(self, text: str, _translation: str | None = None) -> Trace:
        """What happens inside, by modules of its own."""
        return look(self._traced, text)

    def tokens(self, text: str, _translation: str | None = None) -> int:
        """Length of what a trace would show."""
        return len(self.tokenizer.encode([text])[0])

    @cached_property
    def _traced(self) -> TextModel:
        both = (self.tokenizer, self.tokenizer)
        return TextModel(copy_sharing_weights(self.model), both, max_tokens=self.max_tokens, labels=self.labels)


ServedModel = ServedTranslator | ServedLmOrClassifier


def _name(path: Path) -> str:
    """A folder's own name: paths of this machine are not for clients."""
    return path.resolve().name


def open_models(
    paths: Sequence[Path], languages: Sequence[str], search: Mapping[str, Any], open_model: Callable[[Path], Translator]
) -> tuple[list[ServedTranslator], list[ServedLmOrClassifier]]:
    """Open model folders. languages: for each encoder-decoder model, as `open_translators` takes them."""
    folders = [read_model_folder(path) for path in paths]
    translating = [folder.path for folder in folders if folder.run.model.kind == "encoder-decoder"]
    translators = open_translators(translating, languages, search, open_model)
    others = [ServedLmOrClassifier.of(folder, search) for folder in folders if folder.path not in translating]
    models: list[ServedModel] = [*translators, *others]
    for model in others:
        same = [one.path for one in models if one.name == model.name]
        if len(same) > 1:
            raise ConfigError(
                f"{same[0]} and {same[1]} are both called {model.name}, and are asked for by name: rename one"
            )
    return translators, others


def open_translators(
    paths: Sequence[Path],
    languages: Sequence[str],
    search: Mapping[str, Any],
    open_model: Callable[[Path], Translator] = load,
) -> list[ServedTranslator]:
    """Open folders of models that translate. languages: `en-de` for each, where a card names none or others."""
    if languages and len(languages) != len(paths):
        raise ConfigError(
            f"--languages is given {len(languages)} times for {len(paths)} models that translate: give it for each"
        )
    served = [
        _open(path, languages[number] if languages else None, search, open_model) for number, path in enumerate(paths)
    ]
    for number, one in enumerate(served):
        for other in served[:number]:
            if (one.source, one.target) == (other.source, other.target):
                raise ConfigError(
                    f"{other.path} and {one.path} both translate {one.source} to {one.target}: serve one, or say what "
                    "each translates: --languages en-de --languages de-en"
                )
    return served


def _open(
    path: Path, languages: str | None, search: Mapping[str, Any], open_model: Callable[[Path], Translator]
) -> ServedTranslator:
    folder = read_translation_folder(path)
    data = folder.run.data
    if languages:
        source, dash, target = languages.partition(":" if ":" in languages else "-")
    else:  # a model whose folder does not name its languages translates all the same
        source, dash, target = data.source_language or UNNAMED[0], "-", data.target_language or UNNAMED[1]
    for code in (source, target):
        if not dash or not is_code(code):
            found = f"--languages {languages}" if languages else f"{path} says {source!r} to {target!r}"
            raise ConfigError(f"{found}: expected two language codes; say which with --languages en-de, or en:pt-BR")
    translator = open_model(path)
    translator.search = SearchConfig.model_validate(translator.search.model_dump() | dict(search))
    trigrams = folder.trained.get("trigrams") or {}
    profiles = {code: trigrams[side] for code, side in ((source, "source"), (target, "target")) if trigrams.get(side)}
    return ServedTranslator(path, source, target, translator, profiles, trained_on(folder.trained), examples_in(path))


class Directions:
    """The models that translate, by language pair."""

    def __init__(self, served: Sequence[ServedTranslator]) -> None:
        self.served = list(served)
        self._by_pair = {(one.source, one.target): one for one in served}
        self.codes = list(dict.fromkeys(code for one in served for code in (one.source, one.target)))
        profiles = {code: ranked for one in reversed(served) for code, ranked in one.profiles.items()}
        self.detector = LanguageDetector(profiles)

    def code_of(self, requested: str) -> str | None:
        """The served code of a language: `de` for `de`, `DE`, `de-AT` and `de_Latn`; None: it is not served."""
        return AUTO if requested.lower() == AUTO else nearest_code(requested, self.codes)

    def between(self, source: str, target: str) -> ServedTranslator | None:
        """The model for a direction; None: the two are one language, and there is nothing to do. KeyError: no model."""
        return None if source == target and source in self.codes else self._by_pair[source, target]

    def targets(self, source: str) -> list[str]:
        """The languages that `source` can be translated to, itself included, as LibreTranslate has it."""
        return sorted({source, *(target for code, target in self._by_pair if code == source)})

    def sources(self, target: str) -> list[str]:
        """The languages that can be translated to `target`, itself included."""
        return list(dict.fromkeys((*(code for code, other in self._by_pair if other == target), target)))

    def detect(self, text: str, among: Sequence[str]) -> tuple[str, float] | None:
        """The most probable of these languages, in percent; None where they cannot be told apart."""
        if ranked := self.detector.detect(text, among):
            return ranked[0]
        return (among[0], 0.0) if len(among) == 1 else None
