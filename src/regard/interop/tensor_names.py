"""Rename and reshape tensors between a Hugging Face folder and our models, by a family's rules."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.family_rules import Architecture, FlatSettings, ModelFamily, TensorRule
from regard.interop.weight_files import TensorFiles
from regard.progress import track

TENSORFLOW_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""What the first checkpoints, converted from TensorFlow, call a norm's parameters."""
MAX_NAMES = 8
"""Names listed in one message."""


@dataclass
class UnmappedTensors:
    """What a folder has and our model does not, by their names; kept so that writing the folder again loses nothing."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    leading_rows: dict[str, Tensor] = field(default_factory=dict)
    """Rows that come before ours (`TensorRule.skip_rows`)."""
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)


def canonical_name(name: str, family: ModelFamily) -> str:
    """Return a tensor's name without the model's prefix, in today's spelling."""
    for old, new in TENSORFLOW_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name.removeprefix(family.prefix)


@dataclass
class TensorMapper:
    """Read the tensors of one folder under our names."""

    family: ModelFamily
    architecture: Architecture
    settings: FlatSettings
    files: TensorFiles
    file_names: dict[str, str] = field(init=False)
    """The names in the files, by canonical name."""

    def __post_init__(self) -> None:
        self.file_names = {canonical_name(name, self.family): name for name in self.files.shapes}
        embedding = self.family.embedding
        for alias in self.family.embedding_aliases:
            if embedding not in self.file_names and alias in self.file_names and self.settings.get("tie") != "target":
                self.file_names[embedding] = self.file_names[alias]

    def read(self, expected: Mapping[str, torch.Size]) -> tuple[dict[str, Tensor], UnmappedTensors]:
        """Return the tensors that our model expects, and what is left. All shapes are checked before any tensor is read."""
        used = {
            ours: self.family.find_rule(ours, self.settings, self.architecture)
            for ours in expected
            if not ours.startswith(self.architecture.omitted)
        }
        self._check_shapes(expected, used)
        surplus = self._surplus_names({theirs for _, theirs in used.values()})
        unmapped = UnmappedTensors({name: self._load(name) for name in surplus})
        weights = {}
        total = sum(expected[ours].numel() for ours in used)
        for ours, (rule, theirs) in track(used.items(), total, lambda item: expected[item[0]].numel()):
            tensor = self._load(theirs)
            unmapped.dtypes[theirs] = tensor.dtype
            if rule.skip_rows:
                unmapped.leading_rows[theirs] = tensor[: rule.skip_rows].clone()
            weights[ours] = from_huggingface_layout(tensor, rule).to(torch.float32)
        return weights, unmapped

    def _load(self, name: str) -> Tensor:
        return self.files.read(self.file_names[name])

    def _check_shapes(self, expected: Mapping[str, torch.Size], used: Mapping[str, tuple[TensorRule, str]]) -> None:
        """Require that every tensor exists and has the right shape."""
        missing = dict.fromkeys(theirs for _, theirs in used.values() if theirs not in self.file_names)
        if missing:
            raise UserError(f"{self.files.path} lacks {join_names(list(missing))}")
        wrong = {}
        for ours, (rule, theirs) in used.items():
            shape, required = self.files.shapes[self.file_names[theirs]], rule.shape(expected[ours])
            if tuple(shape) != required:
                wrong[theirs] = f"{theirs} has shape {list(shape)}, config.json says {list(required)}"
        if wrong:
            raise UserError(f"{self.files.path}: {join_names(list(wrong.values()), '; ')}")

    def _surplus_names(self, used: set[str]) -> list[str]:
        """Return the names of known tensors that no rule uses; an unknown tensor means a different model, and is an error."""
        family, surplus, unknown = self.family, [], []
        tied = {family.output, family.output.removesuffix("weight") + "bias", *family.embedding_aliases} - used
        for name in self.file_names:
            if name in used or name == family.embedding:
                continue
            if name in tied:
                self._check_tied(name, used)
            elif matches(name, (*family.kept_tensors, *family.head_tensors)):
                surplus.append(name)
            elif not matches(name, family.ignored_tensors):
                unknown.append(name)
        if unknown:
            raise UserError(
                f"{self.files.path} has tensors that a {family.model_type} model does not have: {join_names(unknown)}"
            )
        return surplus

    def _check_tied(self, name: str, used: set[str]) -> None:
        """Require that a second name of the embedding holds the same values."""
        embedding = self.family.embedding
        if name.endswith("weight") and embedding in used and not torch.equal(self._load(name), self._load(embedding)):
            raise UserError(f"{self.files.path}: {name} differs from {embedding}, which it should equal")


def has_separate_output(family: ModelFamily, files: TensorFiles) -> bool:
    """Return whether a folder's output matrix differs from its embedding."""
    names = {canonical_name(name, family): name for name in files.shapes}
    if family.output not in names or family.embedding not in names:
        return False
    output, embedding = names[family.output], names[family.embedding]
    return files.shapes[output] != files.shapes[embedding] or not torch.equal(files.read(output), files.read(embedding))


def from_huggingface_layout(tensor: Tensor, rule: TensorRule) -> Tensor:
    """Return our tensor from theirs."""
    if not tensor.dim():
        return tensor
    tensor = tensor.flatten(0, rule.leading_ones) if rule.leading_ones else tensor.T if rule.transposed else tensor
    index, count = rule.chunk
    return tensor[rule.skip_rows :].chunk(count)[index].contiguous()


def to_huggingface_layout(chunks: list[tuple[TensorRule, Tensor]], leading_rows: Tensor | None) -> Tensor:
    """Return their tensor from all chunks of it that we have."""
    chunks = sorted(chunks, key=lambda item: item[0].chunk)
    rule, first = chunks[0]
    if not first.dim():
        return first
    tensor = torch.cat([chunk for _, chunk in chunks])
    if rule.skip_rows:
        zeros = tensor.new_zeros(rule.skip_rows, *tensor.shape[1:])
        tensor = torch.cat([zeros if leading_rows is None else leading_rows.to(tensor), tensor])
    return (tensor[(None,) * rule.leading_ones] if rule.leading_ones else tensor.T if rule.transposed else tensor).contiguous()


def to_huggingface_tensors(
    weights: Mapping[str, Tensor],
    family: ModelFamily,
    architecture: Architecture,
    settings: FlatSettings,
    unmapped: UnmappedTensors,
) -> dict[str, Tensor]:
    """Return their tensors by their names, from our weights and what was left when the folder was read."""
    chunks: dict[str, list[tuple[TensorRule, Tensor]]] = {}
    for ours, tensor in track(weights.items(), sum(map(Tensor.numel, weights.values())), lambda weight: weight[1].numel()):
        if not ours.startswith(architecture.omitted):
            rule, theirs = family.find_rule(ours, settings, architecture)
            chunks.setdefault(theirs, []).append((rule, tensor.detach().cpu()))
    tensors = {
        name: to_huggingface_layout(found, unmapped.leading_rows.get(name)).to(unmapped.dtypes.get(name, torch.float32))
        for name, found in chunks.items()
    } | unmapped.tensors
    prefix = "" if architecture.bare else family.prefix
    in_head = {name for name, found in chunks.items() if found[0][0].head and name not in unmapped.tensors}
    in_head |= {name for name in unmapped.tensors if matches(name, family.head_tensors)}
    return {name if name in in_head else prefix + name: tensor for name, tensor in tensors.items()}


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def join_names(names: Sequence[str], separator: str = ", ") -> str:
    return separator.join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
