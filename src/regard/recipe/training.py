"""Settings of training and of decoding."""

from typing import Any, Literal, Self

from pydantic import Field, SerializationInfo, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from regard.recipe.settings import Count, Fraction, Natural, NonNegative, Positive, Settings


class OptimizerSettings(Settings):
    kind: Literal["adam", "adamw", "muon"] = "adamw"
    """`muon` updates the matrices with torch.optim.Muon and everything else with AdamW."""
    learning_rate: Positive = 1e-3
    """Peak rate, reached at the end of warm-up. The 2017 paper's is (width · warmup_steps)^-0.5."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    epsilon: Positive = 1e-9
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay of matrices (adamw, muon); vectors and norms are never decayed."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Each layer's rate is this times that of the layer above it, the embeddings' is the lowest; for fine-tuning."""
    rates: dict[str, Positive] = {}
    """Multiples of the rate for weights whose names start so, such as { encoder = 0.1 } for a pretrained encoder below a new head
    (discriminative fine-tuning, Howard & Ruder 2018); the longest name counts."""
    muon_learning_rate: Positive = 0.02
    """Peak rate of the matrices under muon."""


class ScheduleSettings(Settings):
    kind: Literal["inverse-sqrt", "cosine", "trapezoid", "constant"] = "cosine"
    """`inverse-sqrt` is the schedule of the 2017 paper (sec. 5.3, eq. 3)."""
    warmup_steps: Natural = 500
    final_fraction: Fraction = 0.0
    """Fraction of the peak rate at the last step (cosine, trapezoid)."""
    cooldown_fraction: float = Field(0.2, gt=0, le=1)
    """Fraction of the steps over which a trapezoid falls."""


class Regularization(Settings):
    dropout: Fraction = 0.1
    """After each sub-layer, before the residual addition."""
    attention_dropout: Fraction = 0.0
    """On the attention weights."""
    embedding_dropout: Fraction | None = None
    """On the sum of embeddings and positions. Default: `dropout`."""
    switchout: Fraction = 0.0
    """Probability that an input token of a Transformer is replaced by another of the batch (SwitchOut, Wang et al. 2018)."""
    activation_dropout: Fraction = 0.0
    """Inside the feed-forward layer."""
    drop_path: Fraction = 0.0
    """Probability that a Transformer's last sub-layers are dropped for an example, linearly less for those before them
    (stochastic depth, Huang et al. 2016, eq. 4)."""
    label_smoothing: Fraction = 0.1
    r_drop: NonNegative = 0.0
    """Weight of the divergence between two passes with different dropout (Liang et al. 2021); 0 is one pass."""
    bpe_dropout: Fraction = 0.0
    """Probability of skipping a merge in training (Provilkov et al. 2020)."""

    @property
    def has_noise(self) -> bool:
        """Whether encoders compute with noise while training."""
        rates = self.dropout, self.attention_dropout, self.embedding_dropout, self.switchout, self.activation_dropout
        return any((*rates, self.drop_path))


class InitFrom(Settings):
    """Initial weights, architecture and tokenizer from another run or a Hugging Face folder; its path alone is enough."""

    run: str
    """A run folder, or a Hugging Face folder."""
    modules: list[str] = []
    """Prefixes of the weights to load, such as "encoder". Default: all that the model has; a head of another task starts anew."""
    into: str | None = None
    """Name of that module here: an image "encoder" may become the "image" tower of CLIP, a text "encoder" its "text" tower."""
    tokenizer: bool = True
    """Use its tokenizer too."""

    @model_validator(mode="before")
    @classmethod
    def read_path(cls, given: object) -> object:
        """Read a path alone as the run."""
        return {"run": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def check_into(self) -> Self:
        if self.into is not None and len(self.modules) != 1:
            raise ValueError(
                f"train.init_from.into = {self.into!r} renames one module: "
                f"give one in train.init_from.modules, not {len(self.modules)}"
            )
        return self


class LoraSettings(Settings):
    """Low-rank adaptation (LoRA, Hu et al. 2022): the weights of `train.init_from` are frozen, and a product of two small
    matrices is added to some of them. Weights that the other model does not have, such as a new head, are trained as usual."""

    rank: int = Field(8, ge=1, le=4096)
    """Rank of the product."""
    alpha: Positive = 16.0
    """The product is multiplied by alpha / rank."""
    dropout: Fraction = 0.0
    """Dropout of the product's input."""
    layers: list[Literal["q_proj", "k_proj", "v_proj", "out_proj", "inner", "gate", "outer"]] = ["q_proj", "v_proj"]
    """The linear layers of each block that are adapted: projections of attention, and the feed-forward layer."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class SelfCritical(Settings):
    """Train on the BLEU of outputs that the model samples itself, instead of on the next word of a reference (self-critical
    sequence training, Rennie et al. 2017). For a few hundred steps, from a model that was trained as usual (`init_from`)."""

    samples: int = Field(5, ge=2, le=64)
    """Outputs sampled for each input in a step; each is compared with the mean of the others."""
    cross_entropy_weight: NonNegative = 0.0
    """Weight of the cross-entropy of the references, which is added."""


class Training(Settings):
    """Settings of the training loop of all tasks."""

    steps: Count = 10_000
    gradient_accumulation_steps: Count = 1
    clip_norm: NonNegative = 1.0
    """Largest norm of the gradient; 0 is no clipping."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto` is bf16 on a GPU, and on a CPU that has it where the model is wide enough to gain by it; else fp32."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model with torch.compile. `auto`: on a GPU, if the planned steps save more time than compiling takes."""
    cuda_graphs: bool | Literal["auto"] = "auto"
    """On a GPU, capture the step of each batch shape as a CUDA graph and replay it, which is faster for small models; lengths are
    padded to multiples of 8, so that shapes recur. `auto`: if there are some hundred steps, and most of their shapes recur."""
    deterministic: bool = False
    """On a GPU, use deterministic algorithms only: the same recipe and seed give the same bits on the same hardware, more slowly.
    On a CPU this is always so."""
    evaluate_every: Count = 500
    evaluate_sentences: Natural = 0
    """Validation sentences decoded greedily for BLEU at each evaluation; 0 evaluates by loss only."""
    save_every: Count = 500
    log_every: Count = 20
    log: list[Literal["tensorboard", "wandb", "mlflow"]] = []
    """Loggers besides log.jsonl: TensorBoard, Weights & Biases, MLflow. Each needs its package: pip install "regard[wandb]"."""
    keep_checkpoints: Count = 2
    """Checkpoints to keep, besides the best one and the one resumed from."""
    patience: Natural = 0
    """Stop after this many evaluations without a better one; 0 never stops early."""
    best_metric: str | None = None
    """Validation metric that chooses the best checkpoint, as named in log.jsonl without `valid_`: "mcc", or "loss"; by default
    the task's first, which is accuracy for a classifier."""
    average_checkpoints: Natural = 0
    """The final model is the mean of the last N checkpoints, saved every `save_every` steps; 0 takes the best."""
    ema_decay: Fraction = 0.0
    """Decay of an exponential moving average of the weights, which is then evaluated and kept; 0 is none."""
    workers: int = Field(1, ge=0, le=1024)
    """Batches prepared ahead in threads; the number changes only the speed. `data_wait_fraction` in log.jsonl shows whether they
    are in time."""
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    """How the processes of torchrun train together: `ddp` replicates the model, `fsdp` (FSDP2) shards weights, gradients and
    optimiser state; `auto` is ddp. A single process ignores this."""
    init_from: list[InitFrom] = []
    """Initialise from the weights of another run, or of several: each tower of CLIP may have its own."""
    freeze: list[str] = []
    """Prefixes of weights to freeze, such as "encoder.token_embedding"."""
    lora: LoraSettings | None = None
    """Train adapters of low rank instead of all weights of `init_from`."""
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    regularize: Regularization = Regularization()

    @field_validator("init_from", mode="before")
    @classmethod
    def read_sources(cls, given: object) -> object:
        """Read one source as a list of one."""
        return [] if given is None else [given] if isinstance(given, str | dict | InitFrom) else given

    @model_serializer(mode="wrap")
    def write_sources(self, write: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Write one source as a section, as recipes do, and no source as None."""
        found: dict[str, Any] = write(self)
        if found.get("init_from") == []:
            found["init_from"] = None
        elif len(found.get("init_from", [])) == 1:
            found["init_from"] = found["init_from"][0]
        return {name: value for name, value in found.items() if value is not None or not info.exclude_none}

    @model_validator(mode="after")
    def check_lora(self) -> Self:
        if self.lora is not None and len(self.init_from) != 1:
            raise ValueError("train.lora adapts the weights of another model: name it in train.init_from")
        return self

    @model_validator(mode="after")
    def check_best_metric(self) -> Self:
        if self.best_metric == "bleu" and not self.evaluate_sentences:
            raise ValueError("train.best_metric = 'bleu' needs sentences to decode: set train.evaluate_sentences")
        return self

    def budget(self, positions: int) -> int:
        """Return the positions of one batch, if an example has this many."""
        raise NotImplementedError

    def describe_batch(self) -> str:
        """Return the size of a batch in words."""
        raise NotImplementedError


class TextTraining(Training):
    """The training loop."""

    tokens_per_batch: Count = 4096
    """Padded positions of the longer side in one batch; a step reads this times gradient_accumulation_steps."""

    def budget(self, positions: int) -> int:
        return self.tokens_per_batch

    def describe_batch(self) -> str:
        return f"{self.tokens_per_batch:,} tokens"


class LanguageRegularization(Regularization):
    """Regularisation of language models. What recurrent ones have besides is that of the AWD-LSTM (Merity et al. 2018)."""

    variational_dropout: bool = False
    """Recurrent: `dropout`, `embedding_dropout` and `output_dropout` have one mask for all time steps of a sequence (Gal &
    Ghahramani 2016)."""
    output_dropout: Fraction | None = None
    """Recurrent: before the output layer. Default: `dropout`, which is also between layers."""
    word_dropout: Fraction = 0.0
    """Recurrent: on whole rows of the embedding table, all occurrences of a word in a batch (Gal & Ghahramani 2016, sec. 4.2)."""
    weight_dropout: Fraction = 0.0
    """Recurrent: on the hidden-to-hidden weights (Merity et al. 2018, sec. 2)."""
    activation_penalty: NonNegative = 0.0
    """Recurrent: weight α of the mean square of the output layer's inputs (AR, Merity et al. 2017)."""
    temporal_penalty: NonNegative = 0.0
    """Recurrent: weight β of the mean square of the differences between successive ones (TAR)."""

    def recurrent_setting(self) -> str | None:
        """Return the name of a setting that is given and that only recurrent language models have."""
        names = set(LanguageRegularization.model_fields) - set(Regularization.model_fields)
        return next((name for name in LanguageRegularization.model_fields if name in names and getattr(self, name)), None)


class LanguageTraining(TextTraining):
    """The training loop of language models."""

    regularize: LanguageRegularization = LanguageRegularization()


class DecodeSettings(Settings):
    beam: int = Field(4, ge=1, le=1000)
    """Beam size; 1 is greedy."""
    length_penalty: float = Field(0.6, ge=-5, le=5)
    """α of ((5 + length) / 6)^α (Wu et al. 2016, eq. 14); 0 is none."""
    max_tokens: Count | None = None
    """Longest output. Default: twice the input and 20 more, at most model.max_length."""
    batch_tokens: Count = 8192
    """Source positions times hypotheses in a batch."""
