"""Opens the model folders of a server: which routes each model supports, and which language pair it translates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from heed.artifacts.folder import ModelFolder, read_model_folder
from heed.backends.cpu.library import max_threads
from heed.backends.protocol import BackendChoice
from heed.backends.select import inference_backend
from heed.errors import ConfigError
from heed.inference.classifier import Classifier
from heed.inference.generator import Generator
from heed.inference.open import load, model_on_device, read_translation_folder
from heed.inference.translator import Translator
from heed.interpret.tokens import TextModel
from heed.interpret.trace import Trace, look
from heed.model.size import parameter_counts
from heed.model.transformer import Transformer, copy_sharing_weights
from heed.search_config import SearchConfig
from heed.serving.languages import AUTO, is_code, nearest_code
from heed.serving.provenance import TrainedOn, examples_in, trained_on
from heed.text.language_identification import LanguageDetector
from heed.text.tokenizer import Tokenizer

_SMALL_MODEL = 20_000_000  # parameters up to which threads of one search wait for each other more than they save
UNNAMED = ("source", "target")  # language codes of a model whose folder does not name its languages


@dataclass(frozen=True, eq=False)
class ServedTranslator:
    """An encoder-decoder model and its language pair."""

    path: Path
    source: str
    target: str
    translator: Translator
    profiles: Mapping[str, str]  # language code to letter trigrams; empty if trained without validation texts
    trained: TrainedOn | None = None
    examples: Sequence[str] = ()  # example sentences for the web page
    routes: ClassVar[tuple[str, ...]] = ("translate", "embed", "look")
    task: ClassVar[str] = "translate"

    @property
    def name(self) -> str:
        """The name that requests and responses use."""
        return _public_name(self.path)

    @property
    def choice(self) -> BackendChoice:
        return self.translator.backend.choice

    @property
    def model(self) -> Transformer:
        return self.translator.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the source language."""
        return self.translator.tokenizers[0]

    @property
    def max_tokens(self) -> int:
        return self.translator.max_tokens

    def trace(self, text: str, translation: str | None = None) -> Trace:
        """Trace the model, with modules that share the weights."""
        return self.traced_translator.look(text, translation)

    def tokens(self, text: str, translation: str | None = None) -> int:
        """The longer of the source and target lengths that a trace would have."""
        sides = zip(self.translator.tokenizers, (text, translation or ""), strict=True)
        return max(len(tokenizer.encode([line])[0]) for tokenizer, line in sides)

    @cached_property
    def traced_translator(self) -> Translator:
        """A translator with separate modules that share the weights: a trace registers forward hooks, which concurrent
        translations must not trigger.
        """
        models = [copy_sharing_weights(model) for model in self.translator.models]
        return Translator(models, self.translator.tokenizers, self.translator.search, self.translator.max_tokens)


@dataclass(frozen=True, eq=False)
class ServedLmOrClassifier:
    """A decoder-only model (generates) or an encoder-only model (embeds; classifies if it has a classifier head)."""

    path: Path
    task: str
    model: Transformer
    tokenizer: Tokenizer
    max_tokens: int
    generator: Generator | None = None  # of a language model
    classifier: Classifier | None = None
    trained: TrainedOn | None = None

    @classmethod
    def from_folder(cls, folder: ModelFolder, search: Mapping[str, Any]) -> "ServedLmOrClassifier":
        """Open a folder's model; search: settings that override the folder's."""
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
        """The name that requests and responses use."""
        return _public_name(self.path)

    @property
    def choice(self) -> BackendChoice:
        return inference_backend([self.model]).choice

    @property
    def routes(self) -> tuple[str, ...]:
        optional = {"generate": self.generator, "classify": self.classifier}
        return (*(route for route, component in optional.items() if component is not None), "embed", "look")

    @property
    def labels(self) -> tuple[str, ...]:
        return self.classifier.labels if self.classifier is not None else ()

    def trace(self, text: str, _translation: str | None = None) -> Trace:
        """Trace the model, with modules that share the weights."""
        return look(self._traced, text)

    def tokens(self, text: str, _translation: str | None = None) -> int:
        """The length that a trace would have."""
        return len(self.tokenizer.encode([text])[0])

    @cached_property
    def _traced(self) -> TextModel:
        tokenizers = (self.tokenizer, self.tokenizer)
        return TextModel(copy_sharing_weights(self.model), tokenizers, max_tokens=self.max_tokens, labels=self.labels)


ServedModel = ServedTranslator | ServedLmOrClassifier


def _public_name(path: Path) -> str:
    """The folder's base name: clients must not see paths of the server."""
    return path.resolve().name


def open_models(
    paths: Sequence[Path], languages: Sequence[str], search: Mapping[str, Any], open_model: Callable[[Path], Translator]
) -> tuple[list[ServedTranslator], list[ServedLmOrClassifier]]:
    """Open model folders. languages: one `en-de` per encoder-decoder model, as for `open_translators`."""
    folders = [read_model_folder(path) for path in paths]
    translating = [folder.path for folder in folders if folder.run.model.kind == "encoder-decoder"]
    translators = open_translators(translating, languages, search, open_model)
    lms_and_classifiers = [
        ServedLmOrClassifier.from_folder(folder, search) for folder in folders if folder.path not in translating
    ]
    models: list[ServedModel] = [*translators, *lms_and_classifiers]
    for model in lms_and_classifiers:
        same = [other.path for other in models if other.name == model.name]
        if len(same) > 1:
            raise ConfigError(
                f"{same[0]} and {same[1]} are both named {model.name}, and requests select models by name: rename one"
            )
    return translators, lms_and_classifiers


def open_translators(
    paths: Sequence[Path],
    languages: Sequence[str],
    search: Mapping[str, Any],
    open_model: Callable[[Path], Translator] = load,
) -> list[ServedTranslator]:
    """Open folders of encoder-decoder models. languages: `en-de` for each, overriding the folders' languages."""
    if languages and len(languages) != len(paths):
        raise ConfigError(
            f"--languages is given {len(languages)} times for {len(paths)} translation models: give it once per model"
        )
    served = [
        _open(path, languages[number] if languages else None, search, open_model) for number, path in enumerate(paths)
    ]
    for number, model in enumerate(served):
        for other in served[:number]:
            if (model.source, model.target) == (other.source, other.target):
                raise ConfigError(
                    f"{other.path} and {model.path} both translate {model.source} to {model.target}: serve one, or "
                    "name the languages of each: --languages en-de --languages de-en"
                )
    return served


def _open(
    path: Path, languages: str | None, search: Mapping[str, Any], open_model: Callable[[Path], Translator]
) -> ServedTranslator:
    folder = read_translation_folder(path)
    data = folder.run.data
    if languages:
        source, dash, target = languages.partition(":" if ":" in languages else "-")
    else:  # a model whose folder does not name its languages is served all the same
        source, dash, target = data.source_language or UNNAMED[0], "-", data.target_language or UNNAMED[1]
    for code in (source, target):
        if not dash or not is_code(code):
            given = f"--languages {languages}" if languages else f"{path} names {source!r} and {target!r}"
            raise ConfigError(f"{given}: expected two language codes, such as --languages en-de or en:pt-BR")
    translator = open_model(path)
    engine = translator.engine
    _ = translator.models  # built now: no request waits for them, or finds the folder replaced
    translator.engine = engine  # nothing changes these models, so no search needs to check whether a weight has changed
    translator.search = SearchConfig.model_validate(translator.search.model_dump() | dict(search))
    trigrams = folder.trained.get("trigrams") or {}
    profiles = {code: trigrams[side] for code, side in ((source, "source"), (target, "target")) if trigrams.get(side)}
    return ServedTranslator(path, source, target, translator, profiles, trained_on(folder.trained), examples_in(path))


class Directions:
    """The translation models by direction, that is source and target language."""

    def __init__(self, served: Sequence[ServedTranslator]) -> None:
        self.served = list(served)
        self._by_pair = {(model.source, model.target): model for model in served}
        self.codes = list(dict.fromkeys(code for model in served for code in (model.source, model.target)))
        profiles = {code: trigrams for model in reversed(served) for code, trigrams in model.profiles.items()}
        self.detector = LanguageDetector(profiles)

    def code_of(self, requested: str) -> str | None:
        """The served code that matches a requested one: `de` for `DE`, `de-AT` and `de_Latn`; None: not served."""
        return AUTO if requested.lower() == AUTO else nearest_code(requested, self.codes)

    def translator_for(self, source: str, target: str) -> ServedTranslator | None:
        """The model for a direction; None: source and target are the same language. Raises KeyError without a model."""
        return None if source == target and source in self.codes else self._by_pair[source, target]

    def targets(self, source: str) -> list[str]:
        """The languages that `source` can be translated to, itself included, as in LibreTranslate."""
        return sorted({source, *(target for code, target in self._by_pair if code == source)})

    def sources(self, target: str) -> list[str]:
        """The languages that can be translated to `target`, itself included."""
        return list(dict.fromkeys((*(code for code, other in self._by_pair if other == target), target)))

    def detect(self, text: str, candidates: Sequence[str]) -> tuple[str, float] | None:
        """The most probable of these languages and its confidence in percent; None: there are no profiles."""
        if ranked := self.detector.detect(text, candidates):
            return ranked[0]
        return (candidates[0], 0.0) if len(candidates) == 1 else None


def inference_threads(models: Sequence[ServedTranslator]) -> int:
    """Batches that run at the same time: one per core where all models are small and run in compiled C; else one.

    HTTP and other processes need the cores, too. The threads of one search would wait at every step for the one that
    has none; independent searches do not.
    """
    backends = [served.translator.backend for served in models]
    is_small = all(
        backend.choice.backend == "cpu"
        and sum(part.total for config in backend.configs for part in parameter_counts(config)) <= _SMALL_MODEL
        for backend in backends
    )
    return max_threads() if is_small else 1
