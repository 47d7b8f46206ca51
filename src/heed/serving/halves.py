"""Models that do not translate and are served: a decoder alone writes, an encoder alone tells labels and vectors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from heed.artifacts.folder import ModelFolder, read_model_folder
from heed.config import SearchConfig
from heed.errors import ConfigError
from heed.inference.classifier import Classifier
from heed.inference.generator import Generator
from heed.inference.translator import Translator
from heed.interpret.tokens import TextModel
from heed.interpret.trace import Trace, look
from heed.model.transformer import Transformer
from heed.model.weight_sharing import sharing_weights
from heed.serving.models import Served, name_here, open_served
from heed.serving.provenance import TrainedOn, trained_on
from heed.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Half:
    """One such model, and what it was taught."""

    path: Path
    task: str
    model: Transformer
    tokenizer: Tokenizer
    max_tokens: int
    generator: Generator | None = None  # of a language model
    classifier: Classifier | None = None
    trained: TrainedOn | None = None

    @classmethod
    def of(cls, folder: ModelFolder, search: Mapping[str, Any]) -> "Half":
        """The model of a folder; search: settings instead of the folder's own."""
        model = folder.model().to("cuda" if torch.cuda.is_available() else "cpu")
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
        """What it is called here."""
        return name_here(self.path)

    @property
    def abilities(self) -> tuple[str, ...]:
        """What can be asked of it."""
        own = {"generate": self.generator, "classify": self.classifier}
        return (*(what for what, there in own.items() if there is not None), "embed", "look")

    @property
    def labels(self) -> tuple[str, ...]:
        """Those it tells apart."""
        return self.classifier.labels if self.classifier is not None else ()

    def trace(self, text: str, _translation: str | None = None) -> Trace:
        """What happens inside, by modules of its own."""
        return look(self._traced, text)

    def tokens(self, text: str, _translation: str | None = None) -> int:
        """How many a look would have to show."""
        return len(self.tokenizer.encode([text])[0])

    @cached_property
    def _traced(self) -> TextModel:
        both = (self.tokenizer, self.tokenizer)
        return TextModel(sharing_weights(self.model), both, max_tokens=self.max_tokens, labels=self.labels)


def open_models(
    paths: Sequence[Path], languages: Sequence[str], search: Mapping[str, Any], open_model: Callable[[Path], Translator]
) -> tuple[list[Served], list[Half]]:
    """Open model folders: those that translate, and the others. languages: of each that translates, as `open_served`
    has it.
    """
    folders = [read_model_folder(path) for path in paths]
    translating = [folder.path for folder in folders if folder.run.model.kind == "encoder-decoder"]
    served = open_served(translating, languages, search, open_model)
    halves = [Half.of(folder, search) for folder in folders if folder.run.model.kind != "encoder-decoder"]
    models: list[Served | Half] = [*served, *halves]
    for half in halves:
        same = [one.path for one in models if one.name == half.name]
        if len(same) > 1:
            raise ConfigError(
                f"{same[0]} and {same[1]} are both called {half.name}, and are asked for by name: rename one"
            )
    return served, halves
