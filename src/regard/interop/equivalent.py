"""Other settings and weights of the same function, for models that no Hugging Face family has as they are.

- Sines before cosines: a permutation of the model's width, in every weight that reads or writes it, turns sinusoids that
  alternate sine and cosine (Vaswani et al. 2017, sec. 3.5) into those of Marian and Pegasus.
- Learned positions: a table of positions may hold the sinusoids.
- An output bias may be zero.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from regard.attention.positions import SinusoidalPositions
from regard.interop.family_rules import FlatSettings

WRITES_WIDTH = re.compile(r".*(out_proj|outer)\.(weight|bias)|.*norm\.(weight|bias)")
"""Weights whose first dimension is the model's width."""
READS_WIDTH = re.compile(r".*([qkv]_proj|inner|gate)\.weight|.*embedding\.table\.weight|(token_embedding|output)\.weight")
"""Weights whose second dimension is the model's width."""


@dataclass(frozen=True)
class ExportedForm:
    """A model as it is exported: settings, and weights that compute the same function with them."""

    settings: FlatSettings
    weights: dict[str, Tensor]


def equivalent_forms(settings: FlatSettings, weights: dict[str, Tensor], model: nn.Module) -> Iterator[ExportedForm]:
    """Yield the model as it is, and in each form that computes the same function, the most similar first."""
    tables = {name: part.table for name, part in model.named_modules() if isinstance(part, SinusoidalPositions)}
    rewrites: list[Callable[[ExportedForm], ExportedForm]] = []
    if settings.get("output_bias") is False:
        rewrites.append(with_zero_output_bias)
    if tables and settings.get("positions.sines_first") is False and settings["width"] % 2 == 0:
        rewrites.append(with_sines_first)
    if tables:
        rewrites.append(lambda form: with_learned_positions(form, tables))
    for number in range(len(rewrites) + 1):
        for chosen in combinations(rewrites, number):
            form = ExportedForm(settings, weights)
            for rewrite in chosen:
                form = rewrite(form)
            yield form


def with_zero_output_bias(form: ExportedForm) -> ExportedForm:
    """Return a translator with an output bias of zeros."""
    table = form.weights.get("target_embedding.table.weight", form.weights.get("source_embedding.table.weight"))
    assert table is not None
    zeros = table.new_zeros(table.size(0))
    return ExportedForm({**form.settings, "output_bias": True}, {**form.weights, "output.bias": zeros})


def with_sines_first(form: ExportedForm) -> ExportedForm:
    """Return the model with its width permuted, so that the sines of the positions come before the cosines."""
    order = sines_first_order(form.settings["width"])

    def permute(name: str, tensor: Tensor) -> Tensor:
        if WRITES_WIDTH.fullmatch(name):
            tensor = tensor[order]
        return tensor[:, order] if READS_WIDTH.fullmatch(name) else tensor

    permuted = {name: permute(name, tensor) for name, tensor in form.weights.items()}
    return ExportedForm({**form.settings, "positions.sines_first": True}, permuted)


def sines_first_order(width: int) -> Tensor:
    """Return the components of the model's width in the order of the permuted model."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def with_learned_positions(form: ExportedForm, tables: dict[str, Tensor]) -> ExportedForm:
    """Return the model with its sinusoids as tables of learned positions."""
    learned = {f"{name}.table.weight": table for name, table in tables.items()}
    return ExportedForm({**form.settings, "positions.kind": "learned"}, {**form.weights, **learned})
