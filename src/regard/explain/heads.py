"""The roles of heads: where their weight goes (after Clark et al. 2019, sec. 3, and Voita et al. 2019), and what is lost without
them (Michel et al. 2019).

A relation (T, S) says for each query which keys it holds for. A head's weight on a relation is the weight on those keys, mean
over the queries that have any; the chance weight is the fraction of those keys among the visible ones.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.attention.edit import edit
from regard.attention.lazy_maps import check_heads
from regard.attention.watch import watch

Relations = Mapping[str, Mapping[str, Tensor]]
"""By side ("source" or "target" self-attention, "cross"), the relations (T, S) by name."""
Known = TypeVar("Known")
HeadId = tuple[str, int]
"""The name of the attention module, and the head counted from 0."""

MIN_COSINE = 0.5
"""Words with a larger cosine of their embeddings are similar."""
MIN_EXCESS = 0.15
"""By how much the weight on a relation must exceed chance to be a head's role."""
MIXED = "mixed"


@dataclass(frozen=True)
class HeadRole:
    """A head and its weight on each relation."""

    module: str
    head: int
    """Counted from 0."""
    weights: dict[str, tuple[float, float]]
    """By relation, the weight on it, and the chance weight."""

    @property
    def role(self) -> str:
        """The relation whose weight exceeds chance most; "mixed" if none does clearly."""
        excess = {name: weight - chance for name, (weight, chance) in self.weights.items()}
        best = max(excess, key=lambda name: excess[name], default=MIXED)
        return best if excess.get(best, 0) >= MIN_EXCESS else MIXED


@dataclass(frozen=True)
class KeyChoice:
    """Which of some groups of keys a query should attend to most."""

    query: int
    candidates: tuple[tuple[int, ...], ...]
    correct: int
    """The index of the group."""

    def is_correct(self, weights: Tensor) -> Tensor:
        """Return whether each head (H, T, S) gives the correct group more weight than any other: (H,)."""
        totals = torch.stack([weights[:, self.query, list(keys)].sum(-1) for keys in self.candidates], -1)  # (H, groups)
        others = torch.cat([totals[:, : self.correct], totals[:, self.correct + 1 :]], -1)
        return (totals[:, self.correct, None] > others).all(-1)


def map_relations(
    queries: Sequence[Hashable], keys: Sequence[Hashable], special: Sequence[bool], *, same_text: bool = True
) -> dict[str, Tensor]:
    """Return the relations between the tokens of a map (T, S), given as ids or as words; `special` keys are no words."""
    numbers = {token: number for number, token in enumerate(dict.fromkeys([*queries, *keys]))}
    rows, columns = (torch.tensor([numbers[token] for token in side]) for side in (queries, keys))
    found = {"same word": rows[:, None] == columns, "separator": torch.tensor(special).expand(len(rows), -1)}
    if not same_text:
        return found
    position = torch.arange(len(rows))
    return {"next word": position[:, None] + 1 == position, "previous word": position[:, None] - 1 == position, **found}


def token_relations(ids: Tensor, special: Sequence[int], vectors: Tensor | None = None) -> dict[str, Tensor]:
    """Return the relations between the tokens of one text (T,)."""
    tokens, separators = ids.tolist(), set(special)
    found = map_relations(tokens, tokens, [token in separators for token in tokens])
    if vectors is not None:
        unit = nn.functional.normalize(vectors.float(), dim=-1)
        found["similar word"] = (unit @ unit.T > MIN_COSINE) & ~found["same word"]
    return found


def patch_relations(grid: tuple[int, int], special: int, named: Sequence[int] = ()) -> dict[str, Tensor]:
    """Return the relations between the special tokens and patches of one image; `named` are patches that show what the output
    names."""
    number = special + grid[0] * grid[1]
    down, across = (axis.flatten() for axis in torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij"))
    distance = torch.zeros(number, number, dtype=torch.long)
    distance[special:, special:] = torch.maximum((down[:, None] - down).abs(), (across[:, None] - across).abs())
    patch = torch.arange(number) >= special
    patches = patch[:, None] & patch
    found = {
        "same patch": patches & (distance == 0),
        "neighbouring patch": patches & (distance == 1),
        "special token": ~patch.expand(number, -1),
    }
    if len(named):
        found["named object"] = torch.isin(torch.arange(number) - special, torch.tensor(list(named))).expand(number, -1)
    return found


def attention_side(module: str, kind: str, inputs: Mapping[str, Tensor]) -> str:
    """Return the side of an attention module: "cross", or self-attention of the "source" or "target"."""
    if kind == "cross":
        return "cross"
    has_source = "source" in inputs or "decoder_input_ids" in inputs
    return "source" if has_source and "decoder" not in module.split(".") else "target"


@torch.no_grad()
def watch_examples(
    model: nn.Module, examples: Iterable[tuple[Mapping[str, Tensor], Mapping[str, Known]]]
) -> Iterator[tuple[str, Tensor, Known | None]]:
    """Yield, example by example, each attention module's name, its weights (H, T, S), and what is known of its side."""
    for inputs, known in examples:
        with watch(model) as seen:
            model(**inputs)
        for module in seen.names():
            yield module, seen[module][0].double().cpu(), known.get(attention_side(module, seen.kinds[module], inputs))


class RoleWeights:
    """Sums of the weight of heads on relations, over any number of maps; `roles` gives their means."""

    def __init__(self) -> None:
        self._weight: dict[tuple[str, str], Tensor] = {}
        self._chance: dict[tuple[str, str], float] = defaultdict(float)
        self._queries: dict[tuple[str, str], int] = defaultdict(int)
        self._heads: dict[str, int] = {}

    def add(self, module: str, weights: Tensor, relations: Mapping[str, Tensor]) -> None:
        """Add the weights (H, T, S) of one module in one text."""
        self._heads[module], visible = len(weights), (weights > 0).any(0)
        for name, holds in relations.items():
            if holds.shape != visible.shape:  # recurrent models attend from one query at a time
                continue
            keys = holds & visible
            rows = keys.any(-1)
            on_keys = (weights * keys).sum((-2, -1))  # (H,)
            self._weight[module, name] = self._weight.get((module, name), torch.zeros_like(on_keys)) + on_keys
            self._chance[module, name] += float((keys.sum(-1)[rows] / visible.sum(-1)[rows]).sum())
            self._queries[module, name] += int(rows.sum())

    def roles(self) -> list[HeadRole]:
        """Return every head with its weights on the relations."""
        queries, chance = self._queries, self._chance
        return [
            HeadRole(
                module,
                head,
                {
                    name: (float(total[head]) / queries[where, name], chance[where, name] / queries[where, name])
                    for (where, name), total in self._weight.items()
                    if where == module and queries[where, name]
                },
            )
            for module, count in self._heads.items()
            for head in range(count)
        ]


def assign_roles(model: nn.Module, examples: Iterable[tuple[Mapping[str, Tensor], Relations]]) -> list[HeadRole]:
    """Return every head with its weights on the relations, over examples given as model inputs (1, …) and relations."""
    sums = RoleWeights()
    for module, weights, relations in watch_examples(model, examples):
        sums.add(module, weights, relations or {})
    return sums.roles()


def head_choices(
    model: nn.Module, examples: Iterable[tuple[Mapping[str, Tensor], Mapping[str, KeyChoice]]]
) -> dict[HeadId, list[bool]]:
    """Return whether each head makes the correct choice in each example."""
    found: dict[HeadId, list[bool]] = defaultdict(list)
    for module, weights, choice in watch_examples(model, examples):
        if choice is not None and choice.query < weights.size(1):  # recurrent models attend from one query at a time
            for head, correct in enumerate(choice.is_correct(weights).tolist()):
                found[module, head].append(correct)
    return dict(found)


def ablate_heads(model: nn.Module, heads: Iterable[HeadId]) -> AbstractContextManager[None]:
    """Inside the block, the weights of these heads are zero."""
    chosen: dict[str, list[int]] = defaultdict(list)
    for module, head in heads:
        chosen[module].append(head)

    def zero_heads(name: str, weights: Tensor) -> Tensor:
        changed = weights.clone()
        changed[:, check_heads(chosen[name], weights.size(1), name)] = 0
        return changed

    return edit(model, zero_heads, kinds=[rf"^{re.escape(module)}$" for module in chosen]) if chosen else nullcontext()


def head_importance(model: nn.Module, heads: Iterable[HeadId], loss: Callable[[], float]) -> dict[HeadId, float]:
    """Return by how much the loss rises without each head."""
    whole = loss()
    return {head: loss_without(model, [head], loss) - whole for head in heads}


def prune_heads(
    model: nn.Module, importance: Mapping[HeadId, float], fractions: Sequence[float], loss: Callable[[], float]
) -> dict[float, float]:
    """Return the loss without the least important heads, by the fraction of all heads that is ablated."""
    order = sorted(importance, key=lambda head: importance[head])
    return {fraction: loss_without(model, order[: round(fraction * len(order))], loss) for fraction in fractions}


def loss_without(model: nn.Module, heads: Iterable[HeadId], loss: Callable[[], float]) -> float:
    with ablate_heads(model, heads):
        return loss()
