"""Model folders to models that are served: what each translates to what, and how languages are told apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from heed.config import SearchConfig
from heed.errors import ConfigError
from heed.inference.folders import read_translating_folder
from heed.inference.translator import Translator, load
from heed.interpret.trace import Trace
from heed.model.transformer import Transformer
from heed.model.weight_sharing import sharing_weights
from heed.serving.language_codes import AUTO, is_code, nearest_code
from heed.serving.provenance import TrainedOn, examples_in, trained_on
from heed.text.language_identification import LanguageDetector
from heed.text.tokenizer import Tokenizer

UNNAMED = ("source", "target")  # what the languages of a model are called that does not name them


@dataclass(frozen=True, eq=False)
class Served:
    """A model, and what it translates."""

    path: Path
    source: str
    target: str
    translator: Translator
    profiles: Mapping[str, str]  # language to trigrams, where the model was trained with validation texts
    trained: TrainedOn | None = None
    examples: Sequence[str] = ()  # to try it with
    abilities: ClassVar[tuple[str, ...]] = ("translate", "embed", "look")  # what can be asked of it
    task: ClassVar[str] = "translate"

    @property
    def name(self) -> str:
        """What it is called here."""
        return name_here(self.path)

    @property
    def model(self) -> Transformer:
        """The model itself."""
        return self.translator.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Of what it reads."""
        return self.translator.tokenizers[0]

    @property
    def max_tokens(self) -> int:
        """The most that it takes at once."""
        return self.translator.max_tokens

    def trace(self, text: str, translation: str | None = None) -> Trace:
        """What happens inside, by modules of its own."""
        return self.looker.look(text, translation)

    def tokens(self, text: str, translation: str | None = None) -> int:
        """How many a look would have to show, on its longer side."""
        sides = zip(self.translator.tokenizers, (text, translation or ""), strict=True)
        return max(len(side.encode([words])[0]) for side, words in sides)

    @cached_property
    def looker(self) -> Translator:
        """The same with modules of its own around the same weights. Looking inside hangs hooks on modules while it
        lasts: what others translate meanwhile must not run into them.
        """
        models = [sharing_weights(model) for model in self.translator.models]
        return Translator(models, self.translator.tokenizers, self.translator.search, self.translator.max_tokens)


def name_here(path: Path) -> str:
    """What a model is called: its folder's name, never a path."""
    return path.resolve().name


def open_served(
    paths: Sequence[Path],
    languages: Sequence[str],
    search: Mapping[str, Any],
    open_model: Callable[[Path], Translator] = load,
) -> list[Served]:
    """Open model folders. languages: `en-de` for each folder whose card does not say, or says otherwise."""
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
) -> Served:
    folder = read_translating_folder(path)
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
    return Served(path, source, target, translator, profiles, trained_on(folder.trained), examples_in(path))


class Directions:
    """All that is served, by language."""

    def __init__(self, served: Sequence[Served]) -> None:
        self.served = list(served)
        self._by_pair = {(one.source, one.target): one for one in served}
        self.codes = list(dict.fromkeys(code for one in served for code in (one.source, one.target)))
        profiles = {code: ranked for one in reversed(served) for code, ranked in one.profiles.items()}
        self.detector = LanguageDetector(profiles)

    def code_of(self, asked: str) -> str | None:
        """The code that a language is served by: `de` for `de`, `DE`, `de-AT` and `de_Latn`; none: it is not served."""
        return AUTO if asked.lower() == AUTO else nearest_code(asked, self.codes)

    def between(self, source: str, target: str) -> Served | None:
        """The model for a direction; none: the two are one language, and there is nothing to do. KeyError: no model."""
        return None if source == target and source in self.codes else self._by_pair[source, target]

    def targets(self, source: str) -> list[str]:
        """What a language can be translated to, itself included, as LibreTranslate has it."""
        return sorted({source, *(target for code, target in self._by_pair if code == source)})

    def sources(self, target: str) -> list[str]:
        """What can be translated to a language, itself included."""
        return list(dict.fromkeys((*(code for code, other in self._by_pair if other == target), target)))

    def detect(self, text: str, among: Sequence[str]) -> tuple[str, float] | None:
        """The likeliest of these languages, in percent; none where they cannot be told apart."""
        if ranked := self.detector.detect(text, among):
            return ranked[0]
        return (among[0], 0.0) if len(among) == 1 else None
