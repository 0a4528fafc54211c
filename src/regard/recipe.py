"""A recipe: a TOML file turned into frozen, checked settings. Everything a run does follows from it.

Unknown keys, wrong types and impossible combinations are a `Mistake` naming the setting, the value and the cure.
`docs/settings.md` is generated from the types and docstrings below.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from regard.errors import Mistake

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Files = list[str]

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(encoder_layers=2, decoder_layers=2, width=128, heads=4, feed_forward=512),
    "small": dict(encoder_layers=3, decoder_layers=3, width=256, heads=4, feed_forward=1024),
    "base": dict(encoder_layers=6, decoder_layers=6, width=512, heads=8, feed_forward=2048),
    "big": dict(encoder_layers=6, decoder_layers=6, width=1024, heads=16, feed_forward=4096),
}


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class World(Part):
    """Generated data instead of files: `worlds/`, whose truth (alignments, antecedents) is known."""

    kind: Literal["bilingual"] = "bilingual"
    level: int = Field(1, ge=1, le=3)
    """Difficulty: the size of the lexicon and grammar."""
    number: Count = 50_000
    """Training pairs."""
    held_out: Count = 1_000
    """Pairs in each of the validation and test sets."""
    share: float = Field(0.32, ge=0, le=1)
    """The part of the sentences that have an "it"."""
    seed: int = 1


class Data(Part):
    """Where the examples come from: files, or a world."""

    root: str = "."
    """Folder that relative paths start at."""
    train: Files = []
    """Two aligned files (source, target), or one .tsv or .jsonl; each plain, .gz or .xz."""
    valid: Files = []
    """The validation set, in the same forms."""
    test: dict[str, Files] = {}
    """Named test sets, in the same forms."""
    world: World | None = None
    """Take the data from an embedded world instead of files."""
    held_out: int = Field(0, ge=0)
    """Set aside this many distinct source sentences of `train` as the validation set, and as many again as the test set
    `held_out`; all pairs of one source sentence stay together."""
    columns: tuple[int, int] = (0, 1)
    """Source and target column of a .tsv, counted from 0."""
    fields: tuple[str, str] = ("source", "target")
    """Source and target field of a .jsonl."""
    reverse: bool = False
    """Translate from the target into the source."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """What to do with a training line of more than `model.max_length` tokens."""
    origin: str = ""
    """Where the data come from and under which licence; printed on the model's card."""

    @model_validator(mode="after")
    def one_source(self) -> "Data":
        if bool(self.train) == bool(self.world):
            raise ValueError("give either data.train (files) or data.world")
        if self.train and not self.valid and not self.held_out:
            raise ValueError("no validation set: give data.valid, "
                             "or data.held_out = 1000 to set lines of the training data aside")
        if self.valid and self.held_out:
            raise ValueError("give data.valid or data.held_out, not both")
        return self


class Tokens(Part):
    """How text becomes ids, over the `tokenizers` library."""

    kind: Literal["bpe", "wordpiece", "unigram", "characters"] = "bpe"
    size: int = Field(8000, ge=16)
    """Vocabulary size aimed at, special tokens included; ignored for characters."""
    joint: bool = True
    """One vocabulary for both languages (needed to tie all embeddings), or one each."""
    file: str | None = None
    """Load this tokenizer.json (relative to data.root) instead of training one; both languages share it."""
    lowercase: bool = False


class Positions(Part):
    """How the model knows the order of the words."""

    kind: Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"] = "sinusoidal"
    base: float = Field(10_000.0, gt=1)
    """The constant of the sinusoids (Vaswani et al. 2017, sec. 3.5) and of the rotation angles."""
    buckets: int = Field(32, ge=2)
    """Buckets of the relative bias (T5)."""
    max_distance: int = Field(128, ge=2)
    """Distance from which on all relative positions share a bucket (T5)."""


class TransformerModel(Part):
    """The Transformer (Vaswani et al. 2017). Any field of a preset may be overridden."""

    kind: Literal["transformer"] = "transformer"
    preset: Literal["tiny", "small", "base", "big"] | None = None
    """`tiny` 2+2 layers of 128; `small` 3+3 of 256; `base` 6+6 of 512 and `big` 6+6 of 1024, as published."""
    encoder_layers: int = Field(6, ge=1)
    decoder_layers: int = Field(6, ge=1)
    width: Count = 512
    heads: Count = 8
    key_width: Count | None = None
    """Width of a head's queries and keys; width / heads when not given."""
    value_width: Count | None = None
    """Width of a head's values; the key width when not given."""
    key_value_heads: Count | None = None
    """Heads of keys and values, shared by groups of query heads; as many as `heads` when not given."""
    feed_forward: Count = 2048
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["layer", "rms", "batch"] = "layer"
    """`batch` normalises over the batch instead of over a vector; it is here to be compared with."""
    norm_first: bool = False
    """Normalise before each sub-layer (pre-norm) instead of after it (post-norm, as published)."""
    residual: bool = True
    """Add what a sub-layer read to what it says; false is here to be compared with."""
    scale_scores: bool = True
    """Divide the scores by √(key width); false is here to be compared with."""
    encoder_widths: list[Count] | None = None
    """Width after each encoder layer, where they differ; the residual connection is then projected."""
    tie: Literal["all", "target", "none"] = "all"
    """Share embedding weights: both embeddings and the output (as published), target embedding and output, or none."""
    max_length: int = Field(256, ge=2)
    """Longest sentence in tokens."""
    positions: Positions = Positions()

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("preset") in PRESETS:
            return {**PRESETS[given["preset"]], **given}
        return given

    @model_validator(mode="after")
    def fits(self) -> "TransformerModel":
        if self.key_width is None and self.width % self.heads:
            near = nearest_divisor(self.width, self.heads)
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}: "
                             f"use {near} heads, or set model.key_width")
        if self.key_value_heads and self.heads % self.key_value_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of key_value_heads {self.key_value_heads}")
        if self.encoder_widths is not None and len(self.encoder_widths) != self.encoder_layers:
            raise ValueError(f"encoder_widths names {len(self.encoder_widths)} layers, encoder_layers is {self.encoder_layers}")
        if self.positions.kind == "rotary" and (self.key_width or self.width // self.heads) % 2:
            raise ValueError("rotary positions need an even key width")
        return self


class RecurrentModel(Part):
    """Sequence to sequence with recurrent cells, with attention or without (Sutskever et al. 2014; Bahdanau et al. 2015;
    Luong et al. 2015)."""

    kind: Literal["recurrent"]
    cell: Literal["rnn", "lstm", "gru"] = "gru"
    encoder_layers: Count = 1
    decoder_layers: Count = 1
    width: Count = 256
    """Of the states; two directions share it."""
    embedding_width: Count | None = None
    """As `width` when not given."""
    bidirectional: bool = True
    """Read the source in both directions."""
    attention: Literal["none", "dot", "scaled", "general", "additive", "cosine"] = "additive"
    """The score; `none` passes the whole source through one vector."""
    decoder: Literal["bahdanau", "luong"] = "bahdanau"
    """Look before each step, from the state before it (Bahdanau), or after it (Luong)."""
    input_feeding: bool = True
    """Luong's: what was seen for one word is read with the next."""
    attention_width: Count | None = None
    """Of the additive score; as `width` when not given."""
    tie: Literal["all", "target", "none"] = "none"
    """Share embedding weights, as in the Transformer; needs embedding_width = width."""
    max_length: int = Field(256, ge=2)
    """Longest sentence in tokens."""

    @model_validator(mode="after")
    def fits(self) -> "RecurrentModel":
        if self.bidirectional and self.width % 2:
            raise ValueError(f"width {self.width} is not even: two directions share it; "
                             f"use {self.width + 1}, or bidirectional = false")
        if self.tie != "none" and self.embedding_width not in (None, self.width):
            raise ValueError(f"model.tie = {self.tie!r} needs embedding_width = width = {self.width}")
        return self


class UniversalModel(TransformerModel):
    """The Universal Transformer (Dehghani et al. 2019): one block applied again and again. `encoder_layers` and `decoder_layers`
    are the most steps; everything else is as in the Transformer."""

    kind: Literal["universal"]  # type: ignore[assignment]
    halting: Literal["none", "act"] = "act"
    """Take all steps, or let each token decide when it has thought enough (Graves 2016)."""
    ponder: float = Field(0.01, ge=0)
    """What a step costs in the loss, in nats a token."""
    threshold: float = Field(0.99, gt=0, lt=1)
    """A token halts when its halting probabilities add up to this."""

    @model_validator(mode="after")
    def one_width(self) -> "UniversalModel":
        if self.encoder_widths is not None:
            raise ValueError("model.encoder_widths: a universal Transformer applies one block again and again, at one width")
        return self


def model_kind(given: Any) -> str:
    return given.get("kind", "transformer") if isinstance(given, dict) else getattr(given, "kind", "transformer")


Model = Annotated[
    Annotated[TransformerModel, Tag("transformer")]
    | Annotated[RecurrentModel, Tag("recurrent")]
    | Annotated[UniversalModel, Tag("universal")],
    Discriminator(model_kind, custom_error_type="kind",
                  custom_error_message="should be transformer, recurrent or universal"),
]


class Optimizer(Part):
    kind: Literal["adam", "adamw", "muon"] = "adamw"
    """`muon` updates the matrices with torch.optim.Muon and everything else with AdamW."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak rate, reached at the end of warm-up. The 2017 paper's is (width · warmup_steps)^-0.5."""
    beta1: Share = 0.9
    beta2: Share = 0.98
    epsilon: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled decay of matrices (adamw, muon); vectors and norms are never decayed."""
    muon_learning_rate: float = Field(0.02, gt=0)
    """Peak rate of the matrices under muon."""


class Schedule(Part):
    kind: Literal["inverse-sqrt", "cosine", "trapezoid", "constant"] = "cosine"
    """`inverse-sqrt` is the schedule of the 2017 paper (sec. 5.3, eq. 3)."""
    warmup_steps: int = Field(500, ge=0)
    final: Share = 0.0
    """Share of the peak rate left at the last step (cosine, trapezoid)."""
    cooldown: float = Field(0.2, gt=0, le=1)
    """Share of the steps over which a trapezoid falls."""


class Regularize(Part):
    dropout: Share = 0.1
    """After each sub-layer, before it is added."""
    attention_dropout: Share = 0.0
    """On the attention weights."""
    embedding_dropout: Share | None = None
    """On the sum of embeddings and positions; as `dropout` when not given."""
    activation_dropout: Share = 0.0
    """Inside the feed-forward layer."""
    label_smoothing: Share = 0.1
    r_drop: float = Field(0.0, ge=0)
    """Weight of the divergence between two passes with different dropout (Liang et al. 2021); 0 is one pass."""
    bpe_dropout: Share = 0.0
    """Chance of skipping a merge while training (Provilkov et al. 2020)."""


class Begin(Part):
    """Begin from weights of another run."""

    run: str
    """A run folder."""
    parts: list[str] = []
    """Names that the weights taken begin with, such as "encoder"; all when not given."""


class Train(Part):
    """The training loop."""

    steps: Count = 10_000
    tokens_per_batch: Count = 4096
    """Padded positions of the longer side in one batch; a step sees this times gradient_accumulation_steps."""
    gradient_accumulation_steps: Count = 1
    clip_norm: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 is no clipping."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto` is bf16 on a GPU and fp32 on a CPU."""
    compile: bool = False
    """Compile the model with torch.compile."""
    evaluate_every: Count = 500
    evaluate_sentences: int = Field(0, ge=0)
    """Validation sentences decoded greedily for BLEU at each evaluation; 0 evaluates by loss only."""
    save_every: Count = 500
    log_every: Count = 20
    keep: Count = 2
    """Checkpoints kept; the best one is kept besides."""
    patience: int = Field(0, ge=0)
    """Stop after this many evaluations without a better one; 0 never stops early."""
    average: int = Field(0, ge=0)
    """The final model is the mean of the last N evaluated weights; 0 takes the best."""
    ema: Share = 0.0
    """Decay of an exponential moving average of the weights, which is then what is evaluated and kept; 0 is none."""
    workers: int = Field(1, ge=0)
    """Batches prepared ahead in threads; the number changes nothing but the speed."""
    begin: Begin | None = None
    """Begin from weights of another run instead of from nothing."""
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    regularize: Regularize = Regularize()


class Decode(Part):
    beam: Count = 4
    """Hypotheses kept a sentence; 1 is greedy."""
    length_penalty: float = 0.6
    """α of ((5 + length) / 6)^α (Wu et al. 2016, eq. 14); 0 is none."""
    max_tokens: Count | None = None
    """Longest output; twice the input and 20 more when not given, at most model.max_length."""
    batch_tokens: Count = 8192
    """Source positions times hypotheses decoded together."""


class Recipe(Part):
    """A whole run."""

    task: Literal["translate"] = "translate"
    seed: int = Field(1, ge=0)
    data: Data
    tokens: Tokens = Tokens()
    model: Model = TransformerModel()
    train: Train = Train()
    decode: Decode = Decode()

    @model_validator(mode="after")
    def fits(self) -> "Recipe":
        if not self.tokens.joint and self.model.tie == "all":
            raise ValueError("model.tie = 'all' needs one vocabulary: set tokens.joint = true, or model.tie = 'target'")
        if self.train.regularize.bpe_dropout and self.tokens.kind != "bpe":
            raise ValueError(f"train.regularize.bpe_dropout needs tokens.kind = 'bpe', not {self.tokens.kind!r}")
        return self

    def digest(self) -> str:
        """Twelve hex digits that name these settings, wherever the data lie."""
        settings = self.model_dump(mode="json", exclude={"data": {"root"}})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def nearest_divisor(width: int, heads: int) -> int:
    return min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: abs(n - heads))


def read(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """The recipe in a TOML file, with `a.b=c` overrides applied."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Mistake(f"no recipe at {path}; write one with: regard new translate --source F --target F > {path.name}") from None
    except IsADirectoryError:
        raise Mistake(f"{path} is a folder, not a recipe; give the .toml file") from None
    except (UnicodeDecodeError, OSError) as error:
        raise Mistake(f"cannot read the recipe {path}: {error}") from None
    return parse(text, overrides, name=str(path))


def parse(text: str, overrides: list[str] | None = None, *, name: str = "recipe") -> Recipe:
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Mistake(f"{name} is not valid TOML: {error}") from None
    for override in overrides or []:
        apply_override(settings, override)
    return build(settings, name=name)


def build(settings: dict[str, Any], *, name: str = "recipe") -> Recipe:
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        raise Mistake(f"{name}: {explain(error)}") from None


def apply_override(settings: dict[str, Any], override: str) -> None:
    """Set `a.b=c` in nested settings; c is read as TOML, or as a plain string where it is none."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise Mistake(f"--set {override!r} is not of the form part.setting=value, such as train.steps=2000")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for key in keys[:-1]:
        settings = settings.setdefault(key, {})
        if not isinstance(settings, dict):
            raise Mistake(f"--set {override!r}: {key} is a value, not a part with settings")
    settings[keys[-1]] = parsed


def explain(error: ValidationError) -> str:
    """The first problem of a validation error in one line, with the nearest setting where a name is unknown."""
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    place, part = settings_place(problem["loc"])
    dotted = ".".join(place)
    if problem["type"] == "extra_forbidden":
        known = list(part.model_fields)
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        where = f" in {'.'.join(place[:-1])}" if place[:-1] else ""
        return f"no setting {place[-1]!r}{where}; {cure}"
    if problem["type"] == "missing":
        return f"setting {dotted} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    if problem["type"] == "kind":
        return f"{dotted}.kind = {model_kind(problem['input'])!r}: {message}"
    return f"{dotted} = {problem['input']!r}: {message[0].lower()}{message[1:]}"


def settings_place(location: Sequence[int | str]) -> tuple[list[str], type[Part]]:
    """The setting that an error's location names, and the part it is in.

    Kinds of a union stand in the location but not in a recipe.
    """
    place: list[str] = []
    part: type[Part] = Recipe
    options: list[type[Part]] = [Recipe]
    for key in location:
        if tagged := [option for option in options if option.model_fields.get("kind") and key in kinds_of(option)]:
            part = tagged[0]
            continue
        place.append(str(key))
        field = part.model_fields.get(str(key))
        options = parts_in(field.annotation) if field else []
        part = options[0] if options else part
    return place, part


def kinds_of(part: type[Part]) -> tuple[str, ...]:
    return get_args(part.model_fields["kind"].annotation)


def parts_in(annotation: Any) -> list[type[Part]]:
    """The parts among the options of a type."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Part) else []
    return [part for option in get_args(annotation) for part in parts_in(option)]
