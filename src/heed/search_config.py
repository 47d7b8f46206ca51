"""The settings of search and of how texts are split for translation.

Also limits that bound the time and memory of a search: settings come in model folders from elsewhere, too.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heed.errors import ConfigError
from heed.settings import PositiveInt, Seed, Settings

BeamSize = Annotated[int, Field(gt=0, le=1000)]
MAX_OUTPUT_LENGTH = 10_000
OutputLength = Annotated[int, Field(gt=0, le=MAX_OUTPUT_LENGTH)]
TokenCount = Annotated[int, Field(ge=0, le=MAX_OUTPUT_LENGTH)]
SplitMode = Literal["sentences", "line", "none"]


class SearchConfig(Settings):
    """How translations are searched for. The defaults are the paper's."""

    beam: BeamSize = Field(4, description="Beam size; 1: greedy search.")
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = Field(
        0.6, description="Length penalty alpha: scores are divided by ((5 + length) / 6) ** alpha."
    )
    nbest: BeamSize = Field(1, description="Translations to return per sentence, best first; at most beam.")
    stop: Literal["exact", "first"] = Field(
        "exact",
        description="Stop when no hypothesis can win any more (exact), or when nbest have finished (first; faster).",
    )
    min_length: TokenCount = Field(0, description="Minimum tokens per translation.")
    max_length: OutputLength | None = Field(
        None, description="Maximum tokens per translation; none: max_length_ratio × source tokens + max_length_extra."
    )
    max_length_ratio: Annotated[float, Field(ge=0, le=1000)] = Field(
        1.0, description="Maximum tokens per translation for each source token; training raises it to fit its text."
    )
    max_length_extra: TokenCount = Field(
        50, description="Maximum tokens per translation beyond max_length_ratio; training raises it to fit its text."
    )
    no_repeat_ngram: PositiveInt | None = Field(
        None, description="Allow no n-gram of this length twice; none: no restriction."
    )
    sample: bool = Field(default=False, description="Sample from the model's distribution instead of beam search.")
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Softmax temperature for sampling: below 1 sharpens, above 1 flattens."
    )
    top_k: PositiveInt | None = Field(None, description="Sample only among the k most probable tokens; none: all.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Sample only among the most probable tokens whose probabilities sum to p (nucleus); none: all.",
    )
    seed: Seed = Field(1, description="Random seed of sampling.")
    tokens_per_batch: PositiveInt | None = Field(
        None, description="Maximum source tokens per batch, padding included, times beam; none: chosen for the device."
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.sample and self.nbest > self.beam:
            raise ConfigError(f"nbest = {self.nbest} is more than beam = {self.beam}: nbest is at most beam")
        if self.max_length is not None and self.max_length < self.min_length:
            raise ConfigError(f"max_length = {self.max_length} is less than min_length = {self.min_length}")
        return self

    def greedy(self) -> Self:
        """These settings with greedy search."""
        return self.model_copy(update={"beam": 1, "nbest": 1, "sample": False})


class TranslateConfig(Settings):
    """How a text is split and normalised for translation."""

    split: SplitMode = Field(
        "sentences",
        description=(
            "sentences: split lines longer than the training lines into sentences; line: translate each "
            "line as a whole; none: translate each text as a whole, line breaks included."
        ),
    )
    normalize: bool = Field(
        default=True,
        description="Translate ALL CAPS, Title Case, runs of spaces and texts without a final stop in the style of the "
        "training text.",
    )
    correct_spelling: bool = Field(
        default=False,
        description="Correct misspelt source words by the words of the training sources, which training then stores "
        "in the model folder. Set by training, depending on the corpus.",
    )
