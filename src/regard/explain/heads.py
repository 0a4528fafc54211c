"""What each head does: where its weight goes (after Clark et al. 2019, sec. 3 and Voita et al. 2019), and what is lost without it
(Michel et al. 2019).

A relation (T, S) says of each query which keys it holds for. A head's share of it is the weight on those keys, the mean over the
queries that have any; by lot it would be their part of the keys that may be seen.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.edit import edit
from regard.attention.watch import watch

Relations = Mapping[str, Mapping[str, Tensor]]
"""By what looks at what ("source" or "target" at itself, "cross"), the relations (T, S) by name."""
HeadId = tuple[str, int]

MIN_COSINE = 0.5
"""The cosine of word vectors from which words count as similar."""
MIN_EXCESS = 0.15
"""How much more than by lot a share must be to name a head."""
MIXED = "mixed"


@dataclass(frozen=True)
class HeadRole:
    place: str
    number: int
    """Counted from 0."""
    shares: dict[str, tuple[float, float]]
    """By relation, the share of the weight, and what it would be by lot."""

    @property
    def does(self) -> str:
        """The relation that it follows most beyond what lot would have it."""
        best = max(self.shares, key=lambda name: self.excess(name), default=MIXED)
        return best if best in self.shares and self.excess(best) >= MIN_EXCESS else MIXED

    def excess(self, relation: str) -> float:
        share, lot = self.shares[relation]
        return share - lot


@dataclass(frozen=True)
class KeyChoice:
    """Which of some groups of keys a query should look at most."""

    query: int
    among: tuple[tuple[int, ...], ...]
    right: int
    """Which group, counted from 0."""

    def answered(self, weights: Tensor) -> Tensor:
        """Whether each head (H, T, S) gives the right group more weight than any other: (H,)."""
        found = torch.stack([weights[:, self.query, list(keys)].sum(-1) for keys in self.among], -1)  # (H, groups)
        others = torch.cat([found[:, : self.right], found[:, self.right + 1 :]], -1)
        return (found[:, self.right, None] > others).all(-1)


def token_relations(ids: Tensor, marks: Sequence[int], vectors: Tensor | None = None) -> dict[str, Tensor]:
    """Of the tokens of one text (T,) to one another."""
    at = torch.arange(len(ids))
    same = ids[:, None] == ids
    mark = torch.isin(ids, torch.tensor(list(marks), dtype=ids.dtype))
    found = {
        "next word": at[:, None] + 1 == at,
        "previous word": at[:, None] - 1 == at,
        "same word": same,
        "separator": mark.expand(len(ids), -1),
    }
    if vectors is not None:
        unit = nn.functional.normalize(vectors.float(), dim=-1)
        found["similar word"] = (unit @ unit.T > MIN_COSINE) & ~same
    return found


def patch_relations(grid: tuple[int, int], marks: int, named: Sequence[int] = ()) -> dict[str, Tensor]:
    """Of the marks and patches of one picture to one another; `named` are patches that show what the answer names."""
    number = marks + grid[0] * grid[1]
    down, across = (axis.flatten() for axis in torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij"))
    apart = torch.zeros(number, number, dtype=torch.long)
    apart[marks:, marks:] = torch.maximum((down[:, None] - down).abs(), (across[:, None] - across).abs())
    patch = torch.arange(number) >= marks
    patches = patch[:, None] & patch
    found = {"same patch": patches & (apart == 0), "patch beside it": patches & (apart == 1), "mark": ~patch.expand(number, -1)}
    if len(named):
        found["what is named"] = torch.isin(torch.arange(number) - marks, torch.tensor(list(named))).expand(number, -1)
    return found


def attention_side(place: str, inputs: Mapping[str, Tensor]) -> str:
    """What looks at what in a place."""
    if "cross" in place:
        return "cross"
    return "source" if "source" in inputs and not place.startswith("decoder") else "target"


@torch.no_grad()
def assign_roles(model: nn.Module, sentences: Iterable[tuple[Mapping[str, Tensor], Relations]]) -> list[HeadRole]:
    """Every head of a model by where it looks in some sentences, each given as what the model reads (1, …) and its relations."""
    weight: dict[tuple[str, str], Tensor] = {}
    lot: dict[tuple[str, str], float] = defaultdict(float)
    queries: dict[tuple[str, str], int] = defaultdict(int)
    heads: dict[str, int] = {}
    for inputs, relations in sentences:
        with watch(model) as seen:
            model(**inputs)
        for place in seen.names():
            weights = seen[place][0].double().cpu()  # (H, T, S)
            heads[place], visible = len(weights), (weights > 0).any(0)
            for name, holds in relations.get(attention_side(place, inputs), {}).items():
                if holds.shape != visible.shape:  # one query over recurrent states
                    continue
                keys = holds & visible
                rows = keys.any(-1)
                found = (weights * keys).sum((-2, -1))  # (H,)
                weight[place, name] = weight.get((place, name), torch.zeros_like(found)) + found
                lot[place, name] += float((keys.sum(-1)[rows] / visible.sum(-1)[rows]).sum())
                queries[place, name] += int(rows.sum())
    return [
        HeadRole(
            place,
            number,
            {
                name: (float(total[number]) / queries[where, name], lot[where, name] / queries[where, name])
                for (where, name), total in weight.items()
                if where == place and queries[where, name]
            },
        )
        for place, count in heads.items()
        for number in range(count)
    ]


@torch.no_grad()
def head_choices(
    model: nn.Module, sentences: Iterable[tuple[Mapping[str, Tensor], Mapping[str, KeyChoice]]]
) -> dict[HeadId, list[bool]]:
    """Every head's answer to the question that each sentence asks where it looks: right or wrong."""
    found: dict[HeadId, list[bool]] = defaultdict(list)
    for inputs, questions in sentences:
        with watch(model) as seen:
            model(**inputs)
        for place in seen.names():
            question = questions.get(attention_side(place, inputs))
            weights = seen[place][0].double().cpu()  # (H, T, S)
            if question is not None and question.query < weights.size(1):  # not one query over recurrent states
                for head, right in enumerate(question.answered(weights).tolist()):
                    found[place, head].append(right)
    return dict(found)


def without(model: nn.Module, heads: Iterable[HeadId]) -> ExitStack:
    """Inside the block, these heads see nothing."""
    chosen: dict[str, list[int]] = defaultdict(list)
    for place, head in heads:
        chosen[place].append(head)
    stack = ExitStack()
    for place, numbers in chosen.items():
        stack.enter_context(
            edit(model, lambda name, weights: torch.zeros_like(weights), kinds=rf"^{re.escape(place)}$", heads=numbers)
        )
    return stack


def head_importance(model: nn.Module, heads: Iterable[HeadId], loss: Callable[[], float]) -> dict[HeadId, float]:
    """How much worse the model is without each head."""
    whole, found = loss(), {}
    for head in heads:
        with without(model, [head]):
            found[head] = loss() - whole
    return found


def prune_heads(
    model: nn.Module, importance: Mapping[HeadId, float], shares: Sequence[float], loss: Callable[[], float]
) -> dict[float, float]:
    """The loss without the least important of all heads, so much of them at once."""
    order = sorted(importance, key=lambda head: importance[head])
    found = {}
    for share in shares:
        with without(model, order[: round(share * len(order))]):
            found[share] = loss()
    return found
