"""What a family of models is to us: how its config.json and our settings say the same, and which of its tensors are ours.

A family is data, one value of `Family` a model type; nothing here knows a family's name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from regard.errors import UserError
from regard.interop.config import MISSING, ConfigFile, ValueType, integer
from regard.tokens.special_tokens import SpecialTokens

FlatSettings = dict[str, Any]
"""Settings of ours by dotted name, such as `positions.kind`."""
INTEGER = integer()


@dataclass(frozen=True)
class TensorRule:
    """Which tensor of theirs is a tensor of ours; `{i}` is the layer."""

    ours: str
    theirs: str
    transposed: bool = False
    """Theirs is (inputs, outputs): GPT-2's Conv1D."""
    chunk: tuple[int, int] = (0, 1)
    """Ours is the k-th of n equal parts of theirs, side by side along the outputs."""
    skip_rows: int = 0
    """Rows of theirs before ours begin: RoBERTa's positions count from 2."""
    leading_ones: int = 0
    """So many dimensions of 1 stand before ours in theirs: (1, V) for our (V,)."""
    when: tuple[str, tuple[Any, ...]] | None = None
    """Holds only where this setting of ours is one of these."""
    head: bool = False
    """Belongs to what is put on the model: its name never has the model's prefix."""

    def shape(self, ours: Iterable[int]) -> tuple[int, ...]:
        """The shape of theirs, from that of ours."""
        if not (whole := tuple(ours)):
            return whole  # a single number
        first, *rest = whole
        whole = (first * self.chunk[1] + self.skip_rows, *rest)
        return (*[1] * self.leading_ones, *(whole[::-1] if self.transposed else whole))


def linear_rules(ours: str, theirs: str, *, transposed: bool = False, **options: Any) -> list[TensorRule]:
    """The rules of a layer with a matrix and a bias; a model without biases asks for none."""
    return [
        TensorRule(f"{ours}.weight", f"{theirs}.weight", transposed, **options),
        TensorRule(f"{ours}.bias", f"{theirs}.bias", **options),
    ]


def linear_rules_by_prefix(ours: str, theirs: str, pairs: Mapping[str, str], **options: Any) -> list[TensorRule]:
    """The rules of several layers whose names begin alike."""
    return [rule for mine, other in pairs.items() for rule in linear_rules(f"{ours}{mine}", f"{theirs}{other}", **options)]


def weight_rule(ours: str, theirs: str, **options: Any) -> TensorRule:
    return TensorRule(f"{ours}.weight", f"{theirs}.weight", **options)


@dataclass(frozen=True)
class ConfigField:
    """A setting that both sides have."""

    ours: str
    theirs: str
    type: ValueType = INTEGER
    default: Any = MISSING
    """What theirs is when it does not say; a function of what was read so far, where it follows from that."""
    aliases: tuple[str, ...] = ()
    """Names it had before."""


@dataclass(frozen=True)
class Architecture:
    """A model of a family with what is put on it."""

    task: str
    head: tuple[TensorRule, ...] = ()
    settings: FlatSettings = field(default_factory=dict)
    """What it says of our settings."""
    inferred: dict[str, tuple[str, Any, Any]] = field(default_factory=dict)
    """Settings of ours that a tensor of theirs decides: its name, and what it means if it is there and if not."""
    bare: bool = False
    """Nothing is put on it: its tensors have no prefix."""
    omitted: tuple[str, ...] = ()
    """Beginnings of the names of our tensors that it has no place for; they begin from nothing, and are not written."""


@dataclass(frozen=True)
class ModelFamily:
    """One `model_type`."""

    model_type: str
    fields: tuple[ConfigField, ...]
    rules: tuple[TensorRule, ...]
    architectures: dict[str, Architecture]
    """By class name; the first of a task is what a run of ours becomes."""
    bare: str = ""
    """The architecture of a folder that names none."""
    prefix: str = ""
    """What the names of the tensors begin with, where something is put on the model."""
    constant: FlatSettings = field(default_factory=dict)
    """What its models have without saying it."""
    derived: dict[str, Callable[[FlatSettings], Any]] = field(default_factory=dict)
    """What follows from other settings."""
    required: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings of theirs that must have one of these values where they are said."""
    written: dict[str, Callable[[FlatSettings], Any]] = field(default_factory=dict)
    """Settings of theirs that follow from ours, and are only written."""
    problem: Callable[[FlatSettings], str | None] = lambda settings: None
    """What is wrong with settings that are each right, if anything."""
    embedding: str = ""
    """Their tensor of word vectors."""
    output: str = ""
    """Their tensor of output vectors, which may be the same."""
    tie_values: tuple[Any, Any] | None = None
    """What our `tie` is where they are one and where they are two; None: they must be one."""
    tie_default: bool | None = None
    """What `tie_word_embeddings` is when not said; None where the tensors alone decide."""
    embedding_aliases: tuple[str, ...] = ()
    """Other names under which a folder may hold the word vectors."""
    ignored_tensors: tuple[str, ...] = ()
    """Patterns of tensors that a folder may hold and nothing needs: what follows from the settings."""
    kept_tensors: tuple[str, ...] = ()
    """Patterns of tensors that a model may have besides what is read of it; they are kept for the way back."""
    head_tensors: tuple[str, ...] = ()
    """Likewise of other things put on it."""
    decoder_start: str | None = None
    """The setting that names what an output is begun from, where a second text is written."""
    suppressed: tuple[str, ...] = ()
    """Settings that name tokens which are never said."""
    end_problem: Callable[[ConfigFile, SpecialTokens, int], str | None] = lambda config, marks, highest: None
    """What is wrong with how its texts end, if anything, by the settings of its texts and the highest token."""
    text_section: str | None = ""
    """The part of config.json that tells of its texts, all of it where nothing is said; None where it reads none."""
    image_prefix: str = ""
    """What our settings of how pictures are normalised begin with."""
    image_processor: str = ""
    """Whose way of bringing pictures to one size it has (pictures.PROCESSORS), where it reads pictures."""

    def settings(self, config: ConfigFile, architecture: Architecture) -> FlatSettings:
        """Our settings, from a config.json."""
        found: FlatSettings = {}
        for part in self.fields:
            value = read_field(part, config, found)
            if part.ours in found and found[part.ours] != value:
                raise config.error(
                    part.theirs,
                    config.get(part.theirs),
                    f"should be as its fellow ({found[part.ours]}); the two are one setting here",
                )
            found[part.ours] = value
        for name, allowed in self.required.items():
            value = config.get(name)
            if value is not MISSING and value not in allowed:
                raise config.error(name, value, f"is not read here; only {' or '.join(map(repr, allowed))}")
        for name, value in architecture.settings.items():
            if found.get(name, value) != value:
                part = next(part for part in self.fields if part.ours == name)
                raise config.error(
                    part.theirs, config.get(part.theirs), f"this head is read with {part.type.write(value)!r} only"
                )
        found |= self.constant | architecture.settings
        for name, rule in self.derived.items():
            found[name] = rule(found)
        if problem := self.problem(found):
            raise UserError(f"{config.path}: {problem}")
        return found

    def unsupported(self, settings: FlatSettings, architecture: Architecture) -> list[str]:
        """What of our settings has no counterpart."""
        if absent := [part.ours for part in self.fields if part.ours not in settings]:
            return absent
        expected = self.constant | {name: rule(settings) for name, rule in self.derived.items()} | architecture.settings
        covered = {part.ours for part in self.fields}
        expected |= {name: value for name, value in REGARD_ONLY_DEFAULTS.items() if name not in covered | expected.keys()}
        wrong = [name for name, value in settings.items() if name in expected and value != expected[name]]
        if self.tie_values is not None and settings.get("tie") not in self.tie_values:
            wrong.append("tie")
        for part in self.fields:
            try:
                part.type.read(part.type.write(settings[part.ours]))
            except (KeyError, ValueError):
                wrong.append(part.ours)
        return [f"model.{name} = {settings.get(name)!r}" for name in dict.fromkeys(wrong)]

    def config(self, settings: FlatSettings) -> dict[str, Any]:
        """Their config.json, from our settings."""
        made: dict[str, Any] = {"model_type": self.model_type}
        values = {part.theirs: part.type.write(settings[part.ours]) for part in self.fields}
        values |= {name: rule(settings) for name, rule in self.written.items()}
        if self.tie_default is not None and self.tie_values is not None:
            values["tie_word_embeddings"] = settings["tie"] == self.tie_values[0]
        return made | nest_settings(values)

    def find_rule(self, ours: str, settings: FlatSettings, architecture: Architecture) -> tuple[TensorRule, str] | None:
        """The rule of one of our tensors, and the name theirs has, without prefix."""
        for rule in (*architecture.head, *self.rules):
            if rule.when is not None and settings.get(rule.when[0]) not in rule.when[1]:
                continue
            if found := rule_pattern(rule.ours).fullmatch(ours):
                return rule, rule.theirs.replace("{i}", found.groupdict().get("i") or "")
        return None


REGARD_ONLY_DEFAULTS: FlatSettings = {
    "residual": True,
    "window": None,
    "encoder_widths": None,
    "positions.random_offset": 0,
    "layer_scale": None,
    "convolution": 0,
}
"""What nobody else has a name for, as it must be."""


def read_field(part: ConfigField, config: ConfigFile, found: FlatSettings) -> Any:
    for name in (part.theirs, *part.aliases):
        value = config.get(name)
        if value is not MISSING:
            try:
                return part.type.read(value)
            except ValueError as error:
                raise config.error(name, value, str(error)) from None
    value = part.default(found) if callable(part.default) else part.default
    if value is MISSING:
        raise UserError(f"{config.path} does not say {part.theirs}")
    try:
        return part.type.read(value)
    except ValueError as error:
        raise config.error(part.theirs, value, str(error)) from None


@cache
def rule_pattern(ours: str) -> re.Pattern[str]:
    return re.compile(re.escape(ours).replace(r"\{i\}", r"(?P<i>\d+)"))


def flatten_settings(settings: Mapping[str, Any], before: str = "") -> FlatSettings:
    """Nested settings by dotted name."""
    found: FlatSettings = {}
    for name, value in settings.items():
        found |= flatten_settings(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def nest_settings(settings: FlatSettings) -> dict[str, Any]:
    """The other way round, as a recipe has them."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        *parts, last = name.split(".")
        into = made
        for part in parts:
            into = into.setdefault(part, {})
        into[last] = value
    return made
