"""The settings of model, data, training and search, with their defaults, help texts and presets.

Enters: keyword arguments, or a mapping read from a file. Leaves: an immutable config whose every field is valid, or a
`ConfigError` that names the field and its value. Each field's description is its help text, and each default exists
here and nowhere else. Knows nothing of torch, devices or files.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heed.errors import ConfigError
from heed.model_presets import model_preset
from heed.search_config import SearchConfig, TranslateConfig
from heed.settings import PositiveInt, Seed, Settings

TokenId = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
TokenizerName = Literal["bpe", "unigram", "words", "characters", "bytes", "sentencepiece", "spaced"]


class ModelConfig(Settings):
    """The architecture of a Transformer. The defaults are the paper's base model."""

    kind: Literal["encoder-decoder", "decoder", "encoder"] = Field(
        "encoder-decoder", description="Architecture: encoder-decoder, decoder (a language model) or encoder."
    )
    vocab_size: PositiveInt = Field(description="Number of tokens in the (target) vocabulary.")
    source_vocab_size: PositiveInt | None = Field(
        None, description="Number of tokens in a separate source vocabulary; none: source and target share one."
    )
    d_model: PositiveInt = Field(512, description="Width of embeddings and hidden states.")
    heads: PositiveInt = Field(8, description="Attention heads; each works on d_model / heads dimensions.")
    encoder_layers: PositiveInt = Field(6, description="Number of encoder layers, unless decoder-only.")
    decoder_layers: PositiveInt = Field(6, description="Number of decoder layers, unless encoder-only.")
    d_ff: PositiveInt = Field(2048, description="Inner width of the position-wise feed-forward network.")
    dropout: Probability = Field(0.1, description="Dropout on the embeddings and on each sub-layer's output.")
    attention_dropout: Probability = Field(0.1, description="Dropout on the attention weights.")
    activation_dropout: Probability = Field(
        0.1, description="Dropout after the activation of the feed-forward network."
    )
    activation: Literal["relu", "gelu", "swish", "swiglu"] = Field(
        "relu",
        description="Activation of the feed-forward network: relu, gelu, swish or swiglu, which adds a gating matrix.",
    )
    norm: Literal["post", "pre", "sandwich"] = Field(
        "post",
        description="Layer norm: post (after each residual sum, as in the paper), pre (before each sub-layer) or "
        "sandwich (before and after each sub-layer).",
    )
    norm_eps: Annotated[float, Field(gt=0)] = Field(1e-5, description="Epsilon added to the variance in layer norm.")
    positions: Literal["sinusoidal", "learned", "rotary", "index", "none"] = Field(
        "sinusoidal",
        description="Positional encoding: sinusoidal (as in the paper), learned or rotary (RoPE); for comparison also "
        "index (the number of the position is added) or none.",
    )
    tie_embeddings: bool = Field(
        default=True, description="Share one matrix between the embeddings and the output projection."
    )
    labels: PositiveInt | None = Field(
        None, description="Number of classes of an encoder-only classifier; none: predict tokens (masked LM)."
    )
    output_bias: bool = Field(
        default=False, description="Add a bias to the tied output projection; an untied one always has a bias."
    )
    mixer: Literal["attention", "lstm", "gru", "convolution"] = Field(
        "attention", description="What mixes positions: attention, or for comparison lstm, gru or (gated) convolution."
    )
    source_context: Literal["attention", "vector"] = Field(
        "attention",
        description="What a decoder of lstm or gru reads of the source: attention to it, or a fixed vector.",
    )
    without: Literal["scaling", "residuals", "feed-forward", "activation"] | None = Field(
        None,
        description="Part to leave out, for comparison: scaling (the division by √d_k), residuals, feed-forward or "
        "activation (a linear feed-forward network); none: nothing.",
    )
    d_k: PositiveInt | None = Field(
        None, description="Width of each head's queries and keys, for comparison smaller than its values'; none: equal."
    )
    kernel_size: PositiveInt = Field(3, description="Tokens that a convolution reads; odd.")
    max_length: PositiveInt = Field(
        1024, description="Maximum sequence length of learned positions; sinusoidal and rotary have no limit."
    )
    pad_id: TokenId = Field(0, description="Id of the padding token, which attention masks.")
    bos_id: TokenId = Field(1, description="Id of the beginning-of-sequence token, the decoder's first input.")
    eos_id: TokenId = Field(2, description="Id of the end-of-sequence token.")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.d_model % self.heads:
            raise ConfigError(
                f"d_model = {self.d_model} is not divisible by heads = {self.heads}: all heads have the same width"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(f"d_model = {self.d_model} is odd: sinusoidal positions are pairs of sine and cosine")
        if self.positions == "rotary" and self.head_width % 2:
            raise ConfigError(
                f"d_model / heads = {self.d_model} / {self.heads} = {self.head_width} is odd: "
                "rotary positions rotate pairs of dimensions"
            )
        if self.d_k is not None and self.d_k > self.head_width:
            raise ConfigError(f"d_k = {self.d_k} is more than d_model / heads = {self.head_width}")
        if self.positions == "rotary" and self.key_width != self.head_width:
            raise ConfigError(f"d_k = {self.d_k} is not supported with positions = 'rotary', which rotate whole heads")
        if self.labels is not None and self.kind != "encoder":
            raise ConfigError(f"labels = {self.labels} needs kind = 'encoder', found {self.kind!r}")
        if self.source_vocab_size is not None and self.kind != "encoder-decoder":
            raise ConfigError(
                f"source_vocab_size = {self.source_vocab_size} needs kind = 'encoder-decoder', found {self.kind!r}"
            )
        self._check_mixer()
        self._check_special_tokens()
        return self

    def _check_mixer(self) -> None:
        if self.mixer != "attention" and self.without is not None:
            raise ConfigError(f"without = {self.without!r} needs mixer = 'attention', found {self.mixer!r}")
        if self.mixer != "attention" and self.kind != "encoder-decoder":
            raise ConfigError(f"mixer = {self.mixer!r} needs kind = 'encoder-decoder', found {self.kind!r}")
        if self.source_context == "vector" and self.mixer not in ("lstm", "gru"):
            raise ConfigError(f"source_context = 'vector' needs mixer = 'lstm' or 'gru', found {self.mixer!r}")
        if self.mixer in ("lstm", "gru") and self.d_model % 2:
            raise ConfigError(f"d_model = {self.d_model} is odd: an encoder's {self.mixer} has two directions")
        if self.kernel_size % 2 == 0:
            raise ConfigError(f"kernel_size = {self.kernel_size} is even: a convolution is centred on its token")

    def _check_special_tokens(self) -> None:
        special = {"pad_id": self.pad_id, "bos_id": self.bos_id, "eos_id": self.eos_id}
        smallest = min(self.vocab_size, self.source_vocab_size or self.vocab_size)
        for name, value in special.items():
            if value >= smallest:
                raise ConfigError(f"{name} = {value} is outside a vocabulary of {smallest} tokens")
        if len(set(special.values())) < len(special):
            ids = ", ".join(f"{name} = {value}" for name, value in special.items())
            raise ConfigError(f"special tokens must differ from one another, found {ids}")

    @property
    def head_width(self) -> int:
        """K, the width of one head (d_v in the paper, and d_k unless set)."""
        return self.d_model // self.heads

    @property
    def key_width(self) -> int:
        """The width of one head's queries and keys (d_k in the paper)."""
        return self.d_k or self.head_width

    @property
    def has_encoder(self) -> bool:
        """Whether the model has an encoder."""
        return self.kind != "decoder"

    @property
    def has_decoder(self) -> bool:
        """Whether the model has a decoder, whose self-attention is causal."""
        return self.kind != "encoder"

    @property
    def shares_embedding(self) -> bool:
        """Whether source and target tokens share one embedding matrix."""
        return self.kind != "encoder-decoder" or (self.tie_embeddings and self.source_vocab_size is None)

    @property
    def comparison_only(self) -> str | None:
        """The setting that exists for comparison, and that only the reference model supports; None: there is none."""
        if self.mixer != "attention":
            return f"mixer = {self.mixer!r}"
        if self.without is not None:
            return f"without = {self.without!r}"
        if self.key_width != self.head_width:
            return f"d_k = {self.d_k}"
        return f"positions = {self.positions!r}" if self.positions in ("index", "none") else None

    @classmethod
    def preset(cls, name: str, **settings: Any) -> Self:
        """A preset, with any field overridden: ``ModelConfig.preset("tiny", vocab_size=8000)``.

        `base` and `big` are rows of the paper's table 3. `small` suits hundreds of thousands of pairs or two CPU
        cores; `tiny` suits tens of thousands of pairs, on which a larger model overfits. These two are pre-norm, which
        trains several times faster on small corpora (docs/log.md).
        """
        return cls(**{**model_preset(name), **settings})


class DataConfig(Settings):
    """How text becomes token ids: task, tokenizer and vocabulary."""

    task: Literal["translate", "language-model", "masked", "classify"] = Field(
        "translate", description="Training task: translate, language-model, masked (masked LM) or classify."
    )
    labels: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="Class names; empty: all labels in the training text."
    )
    documents: bool = Field(
        default=False,
        description="Texts are documents separated by empty lines; those that are too long are split, not dropped.",
    )
    tokenizer: TokenizerName = Field(
        "bpe",
        description="Tokenizer: bpe, unigram, words, characters, bytes; imported models also sentencepiece or spaced.",
    )
    source_tokenizer: TokenizerName | None = Field(
        None, description="Tokenizer of the source, where it has one of its own; none: that of data.tokenizer."
    )
    vocab_size: PositiveInt | None = Field(
        None, description="Vocabulary size to train; none: chosen by the size of the corpus."
    )
    separate_vocabularies: bool = Field(
        default=False, description="Train separate source and target vocabularies instead of a shared one."
    )
    max_tokens: PositiveInt = Field(
        256, description="Maximum tokens per side; longer pairs are dropped, and their number is reported."
    )
    bpe_dropout: Probability = Field(
        0.0, description="BPE-dropout: probability of skipping a merge, drawn anew in every epoch; needs bpe."
    )
    source_noise: Probability = Field(
        0.0, description="Share of the letters that is misspelt in half of the training sources, anew in every epoch."
    )
    word_pairs: bool = Field(
        default=False, description="Also train on single words and their translations, found in the training text."
    )
    hold_out: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Pairs held out for validation; none: 5 %, at most 1,000, unless there is validation text."
    )
    source_language: str = Field("", description="Source language code, for the model card and the server.")
    target_language: str = Field("", description="Target language code, for the model card and the server.")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        for kind in self.tokenizer_types:
            if self.bpe_dropout and kind != "bpe":
                raise ConfigError(f"bpe_dropout = {self.bpe_dropout} needs tokenizer = 'bpe', found {kind!r}")
        for name in ("source_noise", "word_pairs"):
            if getattr(self, name) and self.task != "translate":
                raise ConfigError(f"{name} = {getattr(self, name)} does not apply to task = {self.task!r}")
        return self

    @property
    def tokenizer_types(self) -> tuple[TokenizerName, TokenizerName]:
        """Of source and target."""
        return self.source_tokenizer or self.tokenizer, self.tokenizer

    @property
    def tokenizer_names(self) -> str:
        """The types for messages: bpe, or characters and bpe."""
        return " and ".join(dict.fromkeys(self.tokenizer_types))

    @property
    def has_two_vocabularies(self) -> bool:
        """Whether source and target have separate vocabularies."""
        source, target = self.tokenizer_types
        return self.separate_vocabularies or source != target


class TrainingConfig(Settings):
    """How a model is trained. The defaults are the paper's, for millions of pairs."""

    max_steps: PositiveInt = Field(
        100_000, description="Optimiser steps to train for, counted from the start of the run, not from a resume."
    )
    max_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop after so many minutes, counted from the start or resume of the run; none: never."
    )
    tokens_per_batch: PositiveInt = Field(
        25_000, description="Maximum target tokens per batch; a longer sentence is a batch of its own."
    )
    accumulate: PositiveInt = Field(
        1, description="Batches per optimiser step (gradient accumulation); the loss is averaged over all their tokens."
    )
    optimizer: Literal["adam", "adamw"] = Field("adam", description="Optimiser: adam, as in the paper, or adamw.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="Weight decay of adamw.")
    schedule: Literal["paper", "inverse-sqrt", "cosine", "constant"] = Field(
        "paper",
        description="Learning rate after the warm-up: paper, inverse-sqrt, cosine (to 0 at max_steps) or constant.",
    )
    learning_rate_factor: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Factor of the paper's schedule, whose peak depends on d_model and warmup_steps."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        5e-4, description="Peak learning rate of all schedules but the paper's."
    )
    warmup_steps: PositiveInt = Field(4000, description="Steps of linear learning-rate warm-up.")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Clip gradients to this global L2 norm; none: no clipping."
    )
    label_smoothing: Probability = Field(
        0.1, description="Label smoothing: probability mass spread evenly over the vocabulary."
    )
    masked_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.15, description="Masked language modelling: share of the tokens that are selected for prediction."
    )
    r_drop: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="Weight of R-Drop, the KL divergence between two passes with different dropout; its paper uses 5.",
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Decay of the weights' EMA, which is validated and saved instead of them; none: no EMA."
    )
    validate_every: PositiveInt = Field(1000, description="Optimiser steps between validations.")
    checkpoint_every: PositiveInt = Field(1000, description="Optimiser steps between checkpoints.")
    keep_last: PositiveInt = Field(5, description="Number of recent checkpoints to keep, besides the best one.")
    best_by: Literal["loss", "bleu", "accuracy"] = Field(
        "loss", description="Validation metric that selects the best checkpoint: loss, bleu or accuracy."
    )
    patience: PositiveInt | None = Field(
        None, description="Early stopping: validations without improvement before training stops; none: never."
    )
    min_delta: Annotated[float, Field(ge=0)] = Field(
        5e-4, description="Smallest decrease of the validation loss, or increase of the score, that patience counts."
    )
    stop_when_exact: PositiveInt | None = Field(
        None, description="Stop after so many validations in a row with all outputs (100 or more) right; none: never."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of activations: float32, bfloat16, or auto: bfloat16 on a GPU, float32 elsewhere.",
    )
    capture: bool = Field(
        default=True, description="On a GPU: use heed's own kernels and replay every training step as a CUDA graph."
    )
    compile: bool | None = Field(
        None,
        description="Compile the layers with torch.compile; none: with CUDA graphs, at width 256 or more, from 5,000 "
        "steps on.",
    )
    shard: bool = Field(
        default=False,
        description="Shard weights and optimiser state over the processes (FSDP2) instead of replicating them.",
    )
    seed: Seed = Field(1, description="Random seed of the run: initialisation, dropout and order of the batches.")


class RunConfig(Settings):
    """All settings of a training run, as saved in its folder and as read from a TOML file."""

    model: ModelConfig
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    translate: TranslateConfig = Field(default_factory=TranslateConfig)
