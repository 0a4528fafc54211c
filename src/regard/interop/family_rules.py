"""Describe a Hugging Face model family as data: how its config.json maps to our settings, and its tensors to ours.

Each family is one value of `ModelFamily`; nothing here depends on a particular one.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from regard.errors import UserError
from regard.interop.config import ConfigFile, ValueType, integer
from regard.tokens.special_tokens import SpecialTokens

FlatSettings = dict[str, Any]
"""Our settings by dotted name, such as `positions.kind`."""
INTEGER = integer()


@dataclass(frozen=True)
class TensorRule:
    """Which of their tensors is one of ours; `{i}` stands for the layer."""

    ours: str
    theirs: str
    transposed: bool = False
    """Theirs is (inputs, outputs): GPT-2's Conv1D."""
    chunk: tuple[int, int] = (0, 1)
    """(k, n): ours is the k-th of n equal chunks of theirs, along the outputs."""
    skip_rows: int = 0
    """Rows of theirs before ours: RoBERTa's positions start at 2."""
    leading_ones: int = 0
    """Dimensions of size 1 that theirs has before ours: (1, V) for our (V,)."""
    when: tuple[str, tuple[Any, ...]] | None = None
    """(setting, values): the rule applies only if our setting has one of these values."""
    head: bool = False
    """Belongs to the head: the tensor's name never has the base model's prefix."""

    def shape(self, ours: Iterable[int]) -> tuple[int, ...]:
        """Return the shape of theirs from that of ours."""
        if not (whole := tuple(ours)):
            return whole  # a scalar
        first, *rest = whole
        whole = (first * self.chunk[1] + self.skip_rows, *rest)
        return (*[1] * self.leading_ones, *(whole[::-1] if self.transposed else whole))


def linear_rules(ours: str, theirs: str, *, transposed: bool = False, **options: Any) -> list[TensorRule]:
    """Return the rules of a layer with a weight and a bias; a model without biases does not use the second."""
    return [
        TensorRule(f"{ours}.weight", f"{theirs}.weight", transposed, **options),
        TensorRule(f"{ours}.bias", f"{theirs}.bias", **options),
    ]


def linear_rules_by_prefix(ours: str, theirs: str, pairs: Mapping[str, str], **options: Any) -> list[TensorRule]:
    """Return the rules of several layers that share a prefix."""
    return [rule for mine, other in pairs.items() for rule in linear_rules(f"{ours}{mine}", f"{theirs}{other}", **options)]


def head_rules(*pairs: tuple[str, str]) -> tuple[TensorRule, ...]:
    """Return the rules of the layers of a head."""
    return tuple(rule for ours, theirs in pairs for rule in linear_rules(ours, theirs, head=True))


def weight_rule(ours: str, theirs: str, **options: Any) -> TensorRule:
    return TensorRule(f"{ours}.weight", f"{theirs}.weight", **options)


@dataclass(frozen=True)
class ConfigField:
    """A setting that both sides have."""

    ours: str
    theirs: str
    type: ValueType = INTEGER
    default: Any = None
    """The value of theirs when config.json omits it; or a function of our settings read so far."""
    aliases: tuple[str, ...] = ()
    """Older names of theirs."""


@dataclass(frozen=True)
class Architecture:
    """A base model of a family with a head for a task."""

    task: str
    head: tuple[TensorRule, ...] = ()
    settings: FlatSettings = field(default_factory=dict)
    """Our settings that it implies."""
    derived: dict[str, Callable[[FlatSettings], Any]] = field(default_factory=dict)
    """Our settings that follow from others."""
    inferred: dict[str, tuple[str, Any, Any]] = field(default_factory=dict)
    """Our settings that depend on a tensor of theirs: its name, the value if it is there, and the value if not."""
    bare: bool = False
    """A base model without a head: its tensors have no prefix."""
    omitted: tuple[str, ...] = ()
    """Prefixes of our tensors that it does not have; they are initialised afresh, and not written."""


@dataclass(frozen=True)
class ModelFamily:
    """One `model_type` of Hugging Face."""

    model_type: str
    fields: tuple[ConfigField, ...]
    rules: tuple[TensorRule, ...]
    architectures: dict[str, Architecture]
    """By class name; a run of ours is written as the first one of its task."""
    bare: str = ""
    """The architecture of a folder that names none."""
    prefix: str = ""
    """What the names of the base model's tensors start with when there is a head."""
    constant: FlatSettings = field(default_factory=dict)
    """Our settings that all its models have."""
    derived: dict[str, Callable[[FlatSettings], Any]] = field(default_factory=dict)
    """Our settings that follow from others."""
    required: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that settings of theirs must have if config.json has them."""
    written: dict[str, Callable[[FlatSettings], Any]] = field(default_factory=dict)
    """Settings of theirs that are only written, computed from ours."""
    computed: Callable[[ConfigFile, FlatSettings], FlatSettings] = lambda config, settings: {}
    """Our settings that need several of theirs, given those of `fields`; `written` is the way back."""
    problem: Callable[[FlatSettings], str | None] = lambda settings: None
    """What is wrong with the combination of settings, if anything."""
    embedding: str = ""
    """Their token embedding."""
    output: str = ""
    """Their output matrix, which may be tied to the embedding."""
    tie_values: tuple[Any, Any] | None = None
    """Our `tie` when they are tied and when not; None: they must be tied."""
    tie_default: bool | None = None
    """`tie_word_embeddings` when config.json omits it; None: the tensors decide."""
    embedding_aliases: tuple[str, ...] = ()
    """Other names under which a folder may hold the embedding."""
    ignored_tensors: tuple[str, ...] = ()
    """Patterns of tensors that follow from the settings, such as position ids."""
    tables: dict[str, Callable[[FlatSettings], Tensor]] = field(default_factory=dict)
    """Tensors of theirs that follow from the settings, and are written."""
    kept_tensors: tuple[str, ...] = ()
    """Patterns of tensors that we do not use, but write again."""
    head_tensors: tuple[str, ...] = ()
    """The same for tensors of other heads."""
    decoder_start: str | None = None
    """The setting that names the first token of an output, for encoder–decoders."""
    language_codes: Literal["none", "as written", "before"] = "none"
    """Whether texts have the codes of their languages: where tokenizer.json puts them, or before the text."""
    suppressed: tuple[str, ...] = ()
    """Settings that name tokens which are never generated."""
    end_problem: Callable[[ConfigFile, SpecialTokens, int], str | None] = lambda config, special_tokens, highest: None
    """What is wrong with how texts end, if anything, given the settings of its texts and the highest token id."""
    text_section: str | None = ""
    """The section of config.json about texts, empty for all of it; None if the model reads no text."""
    tokenizer_pattern: str = ""
    """How AutoTokenizer splits the texts of all its models into words, if it does not do as tokenizer.json says."""
    image_prefix: str = ""
    """The prefix of our settings of pixel normalization."""
    image_processor: str = ""
    """The default image processor (preprocessor.PROCESSORS), if the model reads images."""

    def read_config(self, config: ConfigFile, architecture: Architecture) -> FlatSettings:
        """Return our settings from a config.json."""
        settings: FlatSettings = {}
        for item in self.fields:
            value = read_field(item, config, settings)
            if settings.get(item.ours, value) != value:
                expected = f"should be {settings[item.ours]}, as another setting; the two are one setting here"
                raise config.error(item.theirs, config.get(item.theirs), expected)
            settings[item.ours] = value
        settings |= self.computed(config, settings)
        for name, allowed in self.required.items():
            value = config.get(name)
            if value is not None and value not in allowed:
                raise config.unsupported(name, value, f"is not supported; only {' or '.join(map(repr, allowed))}")
        for name, value in architecture.settings.items():
            if settings.get(name, value) != value:
                item = next(item for item in self.fields if item.ours == name)
                expected = f"this head is supported with {item.type.write(value)!r} only"
                raise config.unsupported(item.theirs, config.get(item.theirs), expected)
        settings |= self.constant | architecture.settings
        for name, rule in (self.derived | architecture.derived).items():
            settings[name] = rule(settings)
        if problem := self.problem(settings):
            raise UserError(f"{config.path}: {problem}")
        return settings

    def unsupported(self, settings: FlatSettings, architecture: Architecture) -> list[str]:
        """Return our settings that this family cannot express."""
        if absent := [item.ours for item in self.fields if item.ours not in settings]:
            return absent
        derived = {name: rule(settings) for name, rule in (self.derived | architecture.derived).items()}
        values = nest_settings({name: rule(settings) for name, rule in self.written.items()})
        computed = self.computed(ConfigFile(values, Path()), settings)
        expected = self.constant | derived | architecture.settings
        covered = {item.ours for item in self.fields} | computed.keys()
        expected |= {name: value for name, value in REGARD_ONLY_DEFAULTS.items() if name not in covered | expected.keys()}
        expected |= computed
        wrong = [name for name, value in settings.items() if name in expected and value != expected[name]]
        if self.tie_values is not None and settings.get("tie") not in self.tie_values:
            wrong.append("tie")
        for item in self.fields:
            try:
                item.type.read(item.type.write(settings[item.ours]))
            except (KeyError, TypeError, ValueError):
                wrong.append(item.ours)
        return [f"model.{name} = {settings.get(name)!r}" for name in dict.fromkeys(wrong)]

    def write_config(self, settings: FlatSettings) -> dict[str, Any]:
        """Return their config.json from our settings."""
        values = {item.theirs: item.type.write(settings[item.ours]) for item in self.fields}
        values |= {name: rule(settings) for name, rule in self.written.items()}
        if self.tie_default is not None and self.tie_values is not None:
            values["tie_word_embeddings"] = settings["tie"] == self.tie_values[0]
        return {"model_type": self.model_type, **nest_settings(values)}

    def find_rule(self, ours: str, settings: FlatSettings, architecture: Architecture) -> tuple[TensorRule, str]:
        """Return the rule of one of our tensors, and the name of theirs without prefix."""
        for rule in (*architecture.head, *self.rules):
            if rule.when is not None and settings.get(rule.when[0]) not in rule.when[1]:
                continue
            if match := rule_pattern(rule.ours).fullmatch(ours):
                return rule, rule.theirs.replace("{i}", match.groupdict().get("i") or "")
        raise AssertionError(f"no rule for {ours} in {self.model_type}")


REGARD_ONLY_DEFAULTS: FlatSettings = {
    "residual": True,
    "window": None,
    "encoder_widths": None,
    "positions.random_offset": 0,
    "positions.scaling.kind": "none",
    "layer_scale": None,
    "qkv_bias": False,
    "qk_norm": False,
    "sandwich_norm": False,
    "scale_embedding": False,
    "scale_width": None,
    "score_cap": None,
    "logit_cap": None,
    "positions.local_base": None,
    "convolution": 0,
    "embedding_width": None,
    "share_layers": False,
    "first_norm": True,
    "head_transform": False,
    "head_bias": True,
    "embedding_norm": False,
    "positions.first": 0,
}
"""Settings that no family can express, with the values that they must have."""


def read_field(item: ConfigField, config: ConfigFile, settings: FlatSettings) -> Any:
    for name in (item.theirs, *item.aliases):
        value = config.get(name)
        if value is not None:
            return config.convert(name, value, item.type)
    value = item.default(settings) if callable(item.default) else item.default
    if value is None:
        raise UserError(f"{config.path} does not have {item.theirs}")
    return config.convert(item.theirs, value, item.type)


@cache
def rule_pattern(ours: str) -> re.Pattern[str]:
    return re.compile(re.escape(ours).replace(r"\{i\}", r"(?P<i>\d+)"))


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> FlatSettings:
    """Return nested settings by dotted name."""
    flat: FlatSettings = {}
    for name, value in settings.items():
        flat |= flatten_settings(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def nest_settings(settings: FlatSettings) -> dict[str, Any]:
    """Return flat settings as nested dictionaries."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, last = name.split(".")
        section = nested
        for key in sections:
            section = section.setdefault(key, {})
        section[last] = value
    return nested
