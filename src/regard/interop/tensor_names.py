"""Tensors of a folder as tensors of ours, and back, by a family's rules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.errors import Mistake
from regard.interop.family_rules import Architecture, Family, Rule, Settings
from regard.interop.folder import Tensors

OLDER = {".gamma": ".weight", ".beta": ".bias"}
"""What TensorFlow's first checkpoints call a norm's vectors."""
NAMED = 8


@dataclass
class Left:
    """What a folder has and ours does not, by their names: kept for the way back."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    fronts: dict[str, Tensor] = field(default_factory=dict)
    """Rows before ours begin."""
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)


def canonical(name: str, family: Family) -> str:
    """A tensor's name without the model's prefix, in today's spelling."""
    for old, new in OLDER.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name.removeprefix(family.prefix)


@dataclass
class Names:
    """The tensors of one folder under the names that rules know them by."""

    family: Family
    architecture: Architecture
    settings: Settings
    tensors: Tensors
    found: dict[str, str] = field(init=False)
    """The names in the files, by the names in the rules."""

    def __post_init__(self) -> None:
        self.found = {canonical(name, self.family): name for name in self.tensors.shapes}
        for copy in self.family.copies:
            if self.family.embedding not in self.found and copy in self.found and self.settings.get("tie") != "target":
                self.found[self.family.embedding] = self.found[copy]

    def read(self, wanted: Mapping[str, torch.Size]) -> tuple[dict[str, Tensor], Left]:
        """The tensors that a model of ours wants, and what is left. Shapes are compared before anything is read."""
        rules = {ours: self.rule(ours) for ours in wanted}
        used = {ours: theirs for ours, theirs in rules.items() if theirs is not None}
        self.require(wanted, used)
        left = Left({name: self.tensors.read(self.found[name]) for name in self.surplus({theirs for _, theirs in used.values()})})
        weights = {}
        for ours, (rule, theirs) in used.items():
            whole = self.tensors.read(self.found[theirs])
            left.dtypes[theirs] = whole.dtype
            if rule.front:
                left.fronts[theirs] = whole[: rule.front].clone()
            weights[ours] = ours_of(whole, rule).to(torch.float32)
        return weights, left

    def rule(self, ours: str) -> tuple[Rule, str] | None:
        if ours.startswith(self.architecture.lacks):
            return None
        found = self.family.find(ours, self.settings, self.architecture)
        assert found is not None, f"no rule for {ours} in {self.family.model_type}"
        return found

    def require(self, wanted: Mapping[str, torch.Size], used: Mapping[str, tuple[Rule, str]]) -> None:
        """Every tensor is there, of the right shape and of a kind of number that can be read."""
        missing = dict.fromkeys(theirs for _, theirs in used.values() if theirs not in self.found)
        if missing:
            raise Mistake(f"{self.tensors.where} lacks {listed(list(missing))}")
        wrong = {}
        for ours, (rule, theirs) in used.items():
            shape, expected = self.tensors.shapes[self.found[theirs]], rule.shape(wanted[ours])
            if tuple(shape) != expected:
                wrong[theirs] = f"{theirs} has shape {list(shape)}, config.json says {list(expected)}"
        if wrong:
            raise Mistake(f"{self.tensors.where}: {listed(list(wrong.values()), '; ')}")

    def surplus(self, used: set[str]) -> list[str]:
        """Tensors that nothing needs; one that the family does not know of means another mathematics."""
        family, left = self.family, []
        tied = {family.output, family.output.removesuffix("weight") + "bias", *family.copies} - used
        unknown = []
        for name in self.found:
            if name in used or name == family.embedding:
                continue
            if name in tied:
                self.require_copy(name, used)
            elif matches(name, (*family.kept, *family.heads)):
                left.append(name)
            elif not matches(name, family.ignored):
                unknown.append(name)
        if unknown:
            raise Mistake(f"{self.tensors.where} has what a {family.model_type} model has no place for: {listed(unknown)}")
        return left

    def require_copy(self, name: str, used: set[str]) -> None:
        """A tensor that is only another name of the word vectors must be the same."""
        if (
            name.endswith("weight")
            and self.family.embedding in used
            and not torch.equal(*(self.tensors.read(self.found[one]) for one in (name, self.family.embedding)))
        ):
            raise Mistake(f"{self.tensors.where}: {name} differs from {self.family.embedding}, whose copy it should be")


def separate_output(family: Family, tensors: Tensors) -> bool:
    """Whether a folder has output vectors of their own, not only under their own name."""
    found = {canonical(name, family): name for name in tensors.shapes}
    if family.output not in found or family.embedding not in found:
        return False
    one, other = found[family.output], found[family.embedding]
    return tensors.shapes[one] != tensors.shapes[other] or not torch.equal(tensors.read(one), tensors.read(other))


def ours_of(whole: Tensor, rule: Rule) -> Tensor:
    """Our tensor, out of theirs."""
    if not whole.dim():
        return whole
    whole = whole.flatten(0, rule.flat) if rule.flat else whole.T if rule.transposed else whole
    return whole[rule.front :].chunk(rule.part[1])[rule.part[0]].contiguous()


def theirs_of(parts: list[tuple[Rule, Tensor]], front: Tensor | None) -> Tensor:
    """Their tensor, from all the parts that ours has of it."""
    parts = sorted(parts, key=lambda part: part[0].part)
    rule = parts[0][0]
    if not parts[0][1].dim():
        return parts[0][1]
    whole = torch.cat([tensor for _, tensor in parts])
    if rule.front:
        nothing = whole.new_zeros(rule.front, *whole.shape[1:])
        whole = torch.cat([nothing if front is None else front.to(whole), whole])
    return (whole[(None,) * rule.flat] if rule.flat else whole.T if rule.transposed else whole).contiguous()


def written(
    weights: Mapping[str, Tensor], family: Family, architecture: Architecture, settings: Settings, left: Left
) -> dict[str, Tensor]:
    """Their tensors by their names, from ours and what was left on the way here."""
    parts: dict[str, list[tuple[Rule, Tensor]]] = {}
    heads: dict[str, bool] = {}
    for ours, tensor in weights.items():
        if ours.startswith(architecture.lacks):
            continue
        found = family.find(ours, settings, architecture)
        assert found is not None, f"no rule for {ours} in {family.model_type}"
        rule, theirs = found
        parts.setdefault(theirs, []).append((rule, tensor.detach().cpu()))
        heads[theirs] = rule.head
    made = {
        name: theirs_of(found, left.fronts.get(name)).to(left.dtypes.get(name, torch.float32)) for name, found in parts.items()
    } | left.tensors
    heads |= {name: matches(name, family.heads) for name in left.tensors}
    prefix = "" if architecture.bare else family.prefix
    return {name if heads[name] else prefix + name: tensor for name, tensor in made.items()}


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def listed(names: list[Any], between: str = ", ") -> str:
    return between.join(map(str, names[:NAMED])) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
