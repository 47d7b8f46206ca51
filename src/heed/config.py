"""Settings: closed, frozen, checked when they are made.

Enters: keyword arguments, or a mapping read from a file. Leaves: a value whose every field is valid, or a
`ConfigError` that names the field and the value found. Each field's description is its help text, and each default
exists here and nowhere else. Knows nothing of torch, devices or files.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heed.errors import ConfigError
from heed.settings import Settings, did_you_mean


def model_preset(name: str) -> dict[str, Any]:
    """The settings in which a preset differs from the paper's base model."""
    presets: dict[str, dict[str, Any]] = {
        "tiny": {
            "d_model": 128,
            "heads": 4,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "d_ff": 256,
            "dropout": 0.3,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "norm": "pre",
        },
        "small": {"d_model": 256, "heads": 4, "encoder_layers": 3, "decoder_layers": 3, "d_ff": 1024, "norm": "pre"},
        "base": {},
        "big": {"d_model": 1024, "heads": 16, "d_ff": 4096, "dropout": 0.3},
    }
    if name not in presets:
        raise ConfigError(f"unknown preset {name!r}: {did_you_mean(name, presets)}")
    return presets[name]


PositiveInt = Annotated[int, Field(gt=0)]
Beam = Annotated[int, Field(gt=0, le=1000)]  # settings also come with folders from elsewhere: a search must end, and
Length = Annotated[int, Field(gt=0, le=10_000)]  # its memory grows with these
Seed = Annotated[int, Field(ge=0, lt=2**63)]
TokenId = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
SplitMode = Literal["sentences", "line", "none"]


class ModelConfig(Settings):
    """The shape of a Transformer. The defaults are the paper's base model."""

    kind: Literal["encoder-decoder", "decoder", "encoder"] = Field(
        "encoder-decoder", description="The whole Transformer, or one half of it alone."
    )
    vocab_size: PositiveInt = Field(description="How many different tokens the (target) vocabulary has.")
    source_vocab_size: PositiveInt | None = Field(
        None, description="Tokens in a separate source vocabulary; none: source and target share one."
    )
    d_model: PositiveInt = Field(512, description="Width of every token's vector between the layers.")
    heads: PositiveInt = Field(8, description="Attention heads; each works on d_model / heads numbers.")
    encoder_layers: PositiveInt = Field(6, description="Layers in the encoder, if there is one.")
    decoder_layers: PositiveInt = Field(6, description="Layers in the decoder, if there is one.")
    d_ff: PositiveInt = Field(2048, description="Width inside the position-wise feed-forward network.")
    dropout: Probability = Field(0.1, description="Dropout on the embeddings and on each sub-layer's output.")
    attention_dropout: Probability = Field(0.1, description="Dropout on the attention weights.")
    activation_dropout: Probability = Field(0.1, description="Dropout inside the feed-forward network.")
    activation: Literal["relu", "gelu", "swish", "swiglu"] = Field(
        "relu", description="Non-linearity of the feed-forward network; swiglu adds a third, gating matrix."
    )
    norm: Literal["post", "pre", "sandwich"] = Field(
        "post", description="Layer norm after each residual sum (the paper), before each sub-layer, or around it."
    )
    norm_eps: Annotated[float, Field(gt=0)] = Field(1e-5, description="Added to the variance in layer norm.")
    positions: Literal["sinusoidal", "learned", "rotary"] = Field(
        "sinusoidal", description="How a token knows its place; rotary acts inside self-attention."
    )
    tie_embeddings: bool = Field(default=True, description="One matrix embeds source and target and makes the logits.")
    labels: PositiveInt | None = Field(
        None, description="Classes that an encoder alone sorts texts into; none: it says words."
    )
    output_bias: bool = Field(default=False, description="A bias on tied logits; those not tied always have one.")
    max_length: PositiveInt = Field(
        1024, description="Longest sequence of learned positions; the others have no limit."
    )
    pad_id: TokenId = Field(0, description="The token that fills up rows; never seen by attention.")
    bos_id: TokenId = Field(1, description="The token every target starts with.")
    eos_id: TokenId = Field(2, description="The token every sequence ends with.")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.d_model % self.heads:
            raise ConfigError(
                f"d_model = {self.d_model} is not divisible by heads = {self.heads}: each head takes an equal share"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(f"d_model = {self.d_model} is odd: sinusoidal positions are pairs of sine and cosine")
        if self.positions == "rotary" and self.head_width % 2:
            raise ConfigError(
                f"d_model / heads = {self.d_model} / {self.heads} = {self.head_width} is odd: "
                "rotary positions turn pairs of numbers"
            )
        if self.labels is not None and self.kind != "encoder":
            raise ConfigError(f"labels = {self.labels} needs kind = 'encoder', found {self.kind!r}")
        if self.source_vocab_size is not None and self.kind != "encoder-decoder":
            raise ConfigError(
                f"source_vocab_size = {self.source_vocab_size} needs kind = 'encoder-decoder', found {self.kind!r}"
            )
        self._check_special_tokens()
        return self

    def _check_special_tokens(self) -> None:
        special = {"pad_id": self.pad_id, "bos_id": self.bos_id, "eos_id": self.eos_id}
        smallest = min(self.vocab_size, self.source_vocab_size or self.vocab_size)
        for name, value in special.items():
            if value >= smallest:
                raise ConfigError(f"{name} = {value} is outside a vocabulary of {smallest} tokens")
        if len(set(special.values())) < len(special):
            found = ", ".join(f"{name} = {value}" for name, value in special.items())
            raise ConfigError(f"special tokens must differ from one another, found {found}")

    @property
    def head_width(self) -> int:
        """K, the numbers each head works on."""
        return self.d_model // self.heads

    @property
    def has_encoder(self) -> bool:
        """Whether there is a source side."""
        return self.kind != "decoder"

    @property
    def has_decoder(self) -> bool:
        """Whether there is a target side that may not see its own future."""
        return self.kind != "encoder"

    @property
    def shares_embedding(self) -> bool:
        """Whether source and target words are rows of one matrix."""
        return self.kind != "encoder-decoder" or (self.tie_embeddings and self.source_vocab_size is None)

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Self:
        """A named size, with any field set otherwise: ``ModelConfig.preset("tiny", vocab_size=8000)``.

        `base` and `big` are rows of the paper's table 3. `small` suits hundreds of thousands of pairs or two CPU
        cores; `tiny` suits tens of thousands of pairs, where a larger model would learn them by heart. These two are
        pre-norm: on little text that learns several times faster (docs/log.md).
        """
        return cls(**{**model_preset(name), **settings})


class DataConfig(Settings):
    """How text becomes token ids."""

    task: Literal["translate", "language-model", "masked", "classify"] = Field(
        "translate", description="What is learnt: targets of sources, texts word by word, hidden words, or labels."
    )
    labels: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="Names of the classes; none: all that the training text has."
    )
    documents: bool = Field(
        default=False, description="Texts are documents, parted by empty lines; what is too long is cut, not left out."
    )
    tokenizer: Literal["bpe", "unigram", "words", "characters", "bytes", "sentencepiece", "spaced"] = Field(
        "bpe", description="How text is cut; the last two come with imported models, the others bring back any text."
    )
    vocab_size: PositiveInt | None = Field(
        None, description="Tokens to learn; none: chosen for the size of the corpus."
    )
    separate_vocabularies: bool = Field(default=False, description="A vocabulary for each side and not one shared.")
    max_tokens: PositiveInt = Field(256, description="Pairs with a side longer than this are left out, and counted.")
    bpe_dropout: Probability = Field(
        0.0, description="Chance that a merge is left out, anew each time a sentence is seen; for bpe and little text."
    )
    hold_out: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Pairs held out to validate on; none: 5 % and at most 1,000 if no validation text is given."
    )
    source_language: str = Field("", description="The source's language code, for the model card and the server.")
    target_language: str = Field("", description="The target's language code, for the model card and the server.")

    @model_validator(mode="after")
    def _can_be_honoured(self) -> Self:
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise ConfigError(f"bpe_dropout = {self.bpe_dropout} needs tokenizer = 'bpe', found {self.tokenizer!r}")
        return self


class TrainingConfig(Settings):
    """How a model learns. The defaults are the paper's, for millions of pairs."""

    max_steps: PositiveInt = Field(100_000, description="Steps to train for, counted from the very beginning.")
    tokens_per_batch: PositiveInt = Field(
        25_000, description="Target tokens a batch, at most; a longer sentence goes alone."
    )
    accumulate: PositiveInt = Field(
        1, description="Batches a step; their losses are divided once, by all their tokens."
    )
    optimizer: Literal["adam", "adamw"] = Field("adam", description="Adam as in the paper, or with weight decay.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="Weight decay of adamw.")
    schedule: Literal["paper", "inverse-sqrt", "cosine", "constant"] = Field(
        "paper", description="How the learning rate goes after the warm-up; only the paper's depends on d_model."
    )
    learning_rate_factor: Annotated[float, Field(gt=0)] = Field(1.0, description="Multiplies the paper's schedule.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(5e-4, description="Peak of the other schedules.")
    warmup_steps: PositiveInt = Field(4000, description="Steps in which the learning rate rises in a straight line.")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(None, description="Longest gradient; none: any length.")
    label_smoothing: Probability = Field(0.1, description="Share of each target's probability given to all words.")
    masked_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.15, description="Of the tokens of a text, those that the task masked hides or changes."
    )
    r_drop: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight of R-Drop: two passes with different dropout must agree; its paper took 5 here."
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Keep a running mean of the weights, this much of it old at each step: it is what is used."
    )
    validate_every: PositiveInt = Field(1000, description="Steps between validations.")
    checkpoint_every: PositiveInt = Field(1000, description="Steps between checkpoints.")
    keep_last: PositiveInt = Field(5, description="Checkpoints kept besides the best one.")
    best_by: Literal["loss", "bleu", "accuracy"] = Field(
        "loss", description="By which validation score the best model is known."
    )
    patience: PositiveInt | None = Field(None, description="Validations without a better one before training stops.")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Of the arithmetic; weights stay float32. Auto is bfloat16 on a GPU, float32 elsewhere."
    )
    capture: bool = Field(
        default=True, description="On a GPU: our own kernels, and every step a replay of the first (a CUDA graph)."
    )
    compile: bool | None = Field(
        None, description="Compile the layers (torch.compile); none: where steps are captured, if there are many."
    )
    shard: bool = Field(
        default=False, description="Each of several processes holds a share of weights and optimiser (FSDP2), not all."
    )
    seed: Seed = Field(1, description="Everything random follows from it.")


class SearchConfig(Settings):
    """How a translation is looked for. The defaults are the paper's."""

    beam: Beam = Field(4, description="Hypotheses kept at each step; 1 is greedy search.")
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = Field(
        0.6, description="Alpha: scores are divided by ((5 + length) / 6) ** alpha."
    )
    nbest: Beam = Field(1, description="Translations of each sentence, best first; at most as many as beam.")
    stop: Literal["exact", "first"] = Field(
        "exact", description="End when no hypothesis can win any more, or as soon as nbest have ended (faster)."
    )
    min_length: Annotated[int, Field(ge=0, le=10_000)] = Field(0, description="Fewest tokens of a translation.")
    max_length: Length | None = Field(None, description="Most tokens of a translation; none: the source's and 50 more.")
    no_repeat_ngram: PositiveInt | None = Field(
        None, description="No run of this many tokens may occur twice; none: any may."
    )
    sample: bool = Field(default=False, description="Draw each token at random by its probability; beam has no say.")
    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="Sampling: below 1 bolder, above 1 wilder.")
    top_k: PositiveInt | None = Field(None, description="Sampling: only among the k likeliest tokens.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Sampling: only among the likeliest tokens that together have this probability."
    )
    seed: Seed = Field(1, description="Sampling: the same seed draws the same tokens.")
    tokens_per_batch: PositiveInt | None = Field(
        None, description="Tokens in work at a time: the sources', padding included, times beam; none: by the device."
    )

    @model_validator(mode="after")
    def _can_be_honoured(self) -> Self:
        if not self.sample and self.nbest > self.beam:
            raise ConfigError(f"nbest = {self.nbest} is more than beam = {self.beam}: a search ends with at most beam")
        if self.max_length is not None and self.max_length < self.min_length:
            raise ConfigError(f"max_length = {self.max_length} is less than min_length = {self.min_length}")
        return self


class TranslateConfig(Settings):
    """How a text is handed to the model, and its translation put together again."""

    split: SplitMode = Field(
        "sentences",
        description="sentences: cut lines that hold more than the training lines did where sentences end; line: "
        "translate each line at once; none: translate each text at once, line breaks and all.",
    )


class RunConfig(Settings):
    """All settings of one training run: what is saved with it, and what a TOML file holds."""

    model: ModelConfig
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    translate: TranslateConfig = Field(default_factory=TranslateConfig)
