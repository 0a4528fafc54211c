"""How a model is trained, and how it decodes."""

from typing import Literal, Self

from pydantic import Field, model_validator

from regard.recipe.settings import Count, Fraction, Settings


class OptimizerSettings(Settings):
    kind: Literal["adam", "adamw", "muon"] = "adamw"
    """`muon` updates the matrices with torch.optim.Muon and everything else with AdamW."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak rate, reached at the end of warm-up. The 2017 paper's is (width · warmup_steps)^-0.5."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    epsilon: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled decay of matrices (adamw, muon); vectors and norms are never decayed."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """The rate of each layer is this times that of the layer above it, the embeddings' the lowest; for fine-tuning."""
    muon_learning_rate: float = Field(0.02, gt=0)
    """Peak rate of the matrices under muon."""


class ScheduleSettings(Settings):
    kind: Literal["inverse-sqrt", "cosine", "trapezoid", "constant"] = "cosine"
    """`inverse-sqrt` is the schedule of the 2017 paper (sec. 5.3, eq. 3)."""
    warmup_steps: int = Field(500, ge=0)
    final_fraction: Fraction = 0.0
    """Share of the peak rate left at the last step (cosine, trapezoid)."""
    cooldown_fraction: float = Field(0.2, gt=0, le=1)
    """Share of the steps over which a trapezoid falls."""


class Regularization(Settings):
    dropout: Fraction = 0.1
    """After each sub-layer, before it is added."""
    attention_dropout: Fraction = 0.0
    """On the attention weights."""
    embedding_dropout: Fraction | None = None
    """On the sum of embeddings and positions; as `dropout` when not given."""
    switchout: Fraction = 0.0
    """Chance that a word which a Transformer reads is switched for another of the batch (after Wang et al. 2018)."""
    activation_dropout: Fraction = 0.0
    """Inside the feed-forward layer."""
    drop_path: Fraction = 0.0
    """Chance that a Transformer's last sub-layers are left out for an example, in proportion less for those before them
    (stochastic depth, Huang et al. 2016, eq. 4)."""
    label_smoothing: Fraction = 0.1
    r_drop: float = Field(0.0, ge=0)
    """Weight of the divergence between two passes with different dropout (Liang et al. 2021); 0 is one pass."""
    bpe_dropout: Fraction = 0.0
    """Chance of skipping a merge while training (Provilkov et al. 2020)."""


class InitFrom(Settings):
    """Begin from weights of another run."""

    run: str
    """A run folder, or a Hugging Face folder."""
    modules: list[str] = []
    """Names that the weights taken begin with, such as "encoder"; all when not given."""
    into: str | None = None
    """What that part is called here: an "encoder" of pictures may become the "image" tower of CLIP."""
    tokenizer: bool = True
    """Take its tokenizer too."""

    @model_validator(mode="after")
    def one_part_has_one_name(self) -> Self:
        if self.into is not None and len(self.modules) != 1:
            raise ValueError("train.init_from.into names one part: give that part alone in train.init_from.modules")
        return self


class Training(Settings):
    """What the training loop of all tasks has."""

    steps: Count = 10_000
    gradient_accumulation_steps: Count = 1
    clip_norm: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 is no clipping."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto` is bf16 on a GPU, and on a CPU that has it where the model is wide enough to gain by it; else fp32."""
    compile: bool = False
    """Compile the model with torch.compile."""
    cuda_graphs: bool = False
    """On a GPU, record the steps of each shape of batch once and replay them (CUDA graphs), which is faster for small models;
    lengths are filled up to multiples of 8, so that shapes come again."""
    evaluate_every: Count = 500
    evaluate_sentences: int = Field(0, ge=0)
    """Validation sentences decoded greedily for BLEU at each evaluation; 0 evaluates by loss only."""
    save_every: Count = 500
    log_every: Count = 20
    keep_checkpoints: Count = 2
    """Checkpoints kept; the best one, and the one resumed from, are kept besides."""
    patience: int = Field(0, ge=0)
    """Stop after this many evaluations without a better one; 0 never stops early."""
    average_checkpoints: int = Field(0, ge=0)
    """The final model is the mean of the last N weights saved every `save_every` steps; 0 takes the best."""
    ema_decay: Fraction = 0.0
    """Decay of an exponential moving average of the weights, which is then what is evaluated and kept; 0 is none."""
    workers: int = Field(1, ge=0)
    """Batches prepared ahead in threads; the number changes nothing but the speed. `data_wait_fraction` in log.jsonl: are they in
    time?"""
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    """How several processes, started by torchrun, train together: `ddp` has the whole model on each, `fsdp` (FSDP2) shards
    weights, gradients and the optimiser over all; `auto` is ddp. One process trains alone, whatever is said here."""
    init_from: InitFrom | None = None
    """Begin from weights of another run instead of from nothing."""
    freeze: list[str] = []
    """Weights whose names begin so stay as they are, such as "encoder.token_embedding"."""
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    regularize: Regularization = Regularization()

    def budget(self, positions: int) -> int:
        """Positions of one batch, where an example has so many."""
        raise NotImplementedError


class TextTraining(Training):
    """The training loop."""

    tokens_per_batch: Count = 4096
    """Padded positions of the longer side in one batch; a step sees this times gradient_accumulation_steps."""

    def budget(self, positions: int) -> int:
        return self.tokens_per_batch


class DecodeSettings(Settings):
    beam: Count = 4
    """Hypotheses kept a sentence; 1 is greedy."""
    length_penalty: float = 0.6
    """α of ((5 + length) / 6)^α (Wu et al. 2016, eq. 14); 0 is none."""
    max_tokens: Count | None = None
    """Longest output; twice the input and 20 more when not given, at most model.max_length."""
    batch_tokens: Count = 8192
    """Source positions times hypotheses decoded together."""
