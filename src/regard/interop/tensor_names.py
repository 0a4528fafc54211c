"""Tensors of a folder as tensors of ours, and back, by a family's rules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.family_rules import Architecture, FlatSettings, ModelFamily, TensorRule
from regard.interop.weight_files import TensorFiles

TENSORFLOW_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""What TensorFlow's first checkpoints call a norm's vectors."""
MAX_NAMES = 8


@dataclass
class UnmappedTensors:
    """What a folder has and ours does not, by their names: kept for the way back."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    leading_rows: dict[str, Tensor] = field(default_factory=dict)
    """Rows before ours begin."""
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)


def canonical_name(name: str, family: ModelFamily) -> str:
    """A tensor's name without the model's prefix, in today's spelling."""
    for old, new in TENSORFLOW_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name.removeprefix(family.prefix)


@dataclass
class TensorMapper:
    """The tensors of one folder under the names that rules know them by."""

    family: ModelFamily
    architecture: Architecture
    settings: FlatSettings
    tensors: TensorFiles
    found: dict[str, str] = field(init=False)
    """The names in the files, by the names in the rules."""

    def __post_init__(self) -> None:
        self.found = {canonical_name(name, self.family): name for name in self.tensors.shapes}
        for copy in self.family.embedding_aliases:
            if self.family.embedding not in self.found and copy in self.found and self.settings.get("tie") != "target":
                self.found[self.family.embedding] = self.found[copy]

    def read(self, wanted: Mapping[str, torch.Size]) -> tuple[dict[str, Tensor], UnmappedTensors]:
        """The tensors that a model of ours wants, and what is left. Shapes are compared before anything is read."""
        rules = {ours: self.rule(ours) for ours in wanted}
        used = {ours: theirs for ours, theirs in rules.items() if theirs is not None}
        self.require(wanted, used)
        left = UnmappedTensors(
            {name: self.tensors.read(self.found[name]) for name in self.surplus({theirs for _, theirs in used.values()})}
        )
        weights = {}
        for ours, (rule, theirs) in used.items():
            whole = self.tensors.read(self.found[theirs])
            left.dtypes[theirs] = whole.dtype
            if rule.skip_rows:
                left.leading_rows[theirs] = whole[: rule.skip_rows].clone()
            weights[ours] = from_huggingface_layout(whole, rule).to(torch.float32)
        return weights, left

    def rule(self, ours: str) -> tuple[TensorRule, str] | None:
        if ours.startswith(self.architecture.omitted):
            return None
        found = self.family.find_rule(ours, self.settings, self.architecture)
        assert found is not None, f"no rule for {ours} in {self.family.model_type}"
        return found

    def require(self, wanted: Mapping[str, torch.Size], used: Mapping[str, tuple[TensorRule, str]]) -> None:
        """Every tensor is there, of the right shape and of a kind of number that can be read."""
        missing = dict.fromkeys(theirs for _, theirs in used.values() if theirs not in self.found)
        if missing:
            raise UserError(f"{self.tensors.path} lacks {join_names(list(missing))}")
        wrong = {}
        for ours, (rule, theirs) in used.items():
            shape, expected = self.tensors.shapes[self.found[theirs]], rule.shape(wanted[ours])
            if tuple(shape) != expected:
                wrong[theirs] = f"{theirs} has shape {list(shape)}, config.json says {list(expected)}"
        if wrong:
            raise UserError(f"{self.tensors.path}: {join_names(list(wrong.values()), '; ')}")

    def surplus(self, used: set[str]) -> list[str]:
        """Tensors that nothing needs; one that the family does not know of means another mathematics."""
        family, left = self.family, []
        tied = {family.output, family.output.removesuffix("weight") + "bias", *family.embedding_aliases} - used
        unknown = []
        for name in self.found:
            if name in used or name == family.embedding:
                continue
            if name in tied:
                self.require_copy(name, used)
            elif matches(name, (*family.kept_tensors, *family.head_tensors)):
                left.append(name)
            elif not matches(name, family.ignored_tensors):
                unknown.append(name)
        if unknown:
            raise UserError(f"{self.tensors.path} has what a {family.model_type} model has no place for: {join_names(unknown)}")
        return left

    def require_copy(self, name: str, used: set[str]) -> None:
        """A tensor that is only another name of the word vectors must be the same."""
        if (
            name.endswith("weight")
            and self.family.embedding in used
            and not torch.equal(*(self.tensors.read(self.found[one]) for one in (name, self.family.embedding)))
        ):
            raise UserError(f"{self.tensors.path}: {name} differs from {self.family.embedding}, whose copy it should be")


def has_separate_output(family: ModelFamily, tensors: TensorFiles) -> bool:
    """Whether a folder has output vectors of their own, not only under their own name."""
    found = {canonical_name(name, family): name for name in tensors.shapes}
    if family.output not in found or family.embedding not in found:
        return False
    one, other = found[family.output], found[family.embedding]
    return tensors.shapes[one] != tensors.shapes[other] or not torch.equal(tensors.read(one), tensors.read(other))


def from_huggingface_layout(whole: Tensor, rule: TensorRule) -> Tensor:
    """Our tensor, out of theirs."""
    if not whole.dim():
        return whole
    whole = whole.flatten(0, rule.leading_ones) if rule.leading_ones else whole.T if rule.transposed else whole
    return whole[rule.skip_rows :].chunk(rule.chunk[1])[rule.chunk[0]].contiguous()


def to_huggingface_layout(parts: list[tuple[TensorRule, Tensor]], front: Tensor | None) -> Tensor:
    """Their tensor, from all the parts that ours has of it."""
    parts = sorted(parts, key=lambda part: part[0].chunk)
    rule = parts[0][0]
    if not parts[0][1].dim():
        return parts[0][1]
    whole = torch.cat([tensor for _, tensor in parts])
    if rule.skip_rows:
        nothing = whole.new_zeros(rule.skip_rows, *whole.shape[1:])
        whole = torch.cat([nothing if front is None else front.to(whole), whole])
    return (whole[(None,) * rule.leading_ones] if rule.leading_ones else whole.T if rule.transposed else whole).contiguous()


def to_huggingface_tensors(
    weights: Mapping[str, Tensor], family: ModelFamily, architecture: Architecture, settings: FlatSettings, left: UnmappedTensors
) -> dict[str, Tensor]:
    """Their tensors by their names, from ours and what was left on the way here."""
    parts: dict[str, list[tuple[TensorRule, Tensor]]] = {}
    heads: dict[str, bool] = {}
    for ours, tensor in weights.items():
        if ours.startswith(architecture.omitted):
            continue
        found = family.find_rule(ours, settings, architecture)
        assert found is not None, f"no rule for {ours} in {family.model_type}"
        rule, theirs = found
        parts.setdefault(theirs, []).append((rule, tensor.detach().cpu()))
        heads[theirs] = rule.head
    made = {
        name: to_huggingface_layout(found, left.leading_rows.get(name)).to(left.dtypes.get(name, torch.float32))
        for name, found in parts.items()
    } | left.tensors
    heads |= {name: matches(name, family.head_tensors) for name in left.tensors}
    prefix = "" if architecture.bare else family.prefix
    return {name if heads[name] else prefix + name: tensor for name, tensor in made.items()}


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def join_names(names: list[Any], between: str = ", ") -> str:
    return between.join(map(str, names[:MAX_NAMES])) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
