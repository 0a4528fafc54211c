"""One encoder block: its parameters, its multiplications, and the quick count that lectures give for them."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from regard.errors import UserError
from regard.layers.block import Block, BlockConfig
from regard.plan.flops import Component, ComponentTotal, count_components, total_cost


@dataclass(frozen=True)
class BlockPlan:
    """A block of this shape reading one sequence of this many tokens."""

    shape: BlockConfig
    tokens: int
    components: list[Component]

    @property
    def total(self) -> ComponentTotal:
        return total_cost(self.components)

    @property
    def parameters(self) -> int:
        return self.total.parameters

    @property
    def deck_a_position(self) -> int:
        """The deck's multiplications for one position: width · width · tokens."""
        return self.shape.width**2 * self.tokens

    @property
    def deck_a_sequence(self) -> int:
        """The deck's multiplications for every position of the sequence."""
        return self.deck_a_position * self.tokens

    def count(self, *steps: str) -> int:
        """The multiplications a position of these steps of the block."""
        return sum(part.multiplications for part in self.components if part.place.step in steps) // self.tokens

    def left_out(self) -> list[str]:
        """How the deck's count relates to the block's real work, and what it leaves out."""
        width, heads, n = self.shape.width, self.shape.heads, self.tokens
        key_width = self.shape.key_width or width // heads
        mine = self.total.multiplications // n
        return [
            f"It charges {width}·{width} multiplications for each of the {n:,} positions looked at, as if a {width} × {width} "
            f"matrix were applied anew for every pair. Keys are projected once; a pair then costs {key_width} a head: "
            f"{heads}·{key_width}·{n:,} = {self.count('scores'):,} a position for the scores.",
            f"It leaves out: that there {'is 1 head' if heads == 1 else f'are {heads} heads'}; the mixing of the values "
            f"({self.count('mixing'):,}); the projections to queries, keys, values and output "
            f"({self.count('queries', 'keys', 'values', 'output'):,}); "
            f"the feed-forward layer ({self.count('inner', 'gate', 'outer'):,}); "
            f"the {heads * n:,} exponentials of the softmax; additions, biases, scaling, norms; "
            "and the backward pass, twice the forward one.",
            f"Counted on the block itself: {mine:,} multiplications a position, {self.total.multiplications:,} a sequence: "
            f"{times(self.deck_a_position, mine)}. Its lesson holds: the cost of a sequence grows with the square of its length.",
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "tokens": self.tokens,
            "parameters": self.parameters,
            "parts": [
                {**asdict(part.place), "parameters": part.parameters, "multiplications": part.multiplications}
                for part in self.components
            ],
            "multiplications": self.total.multiplications,
            "multiplications_a_position": self.total.multiplications // self.tokens,
            "deck": {"a_position": self.deck_a_position, "a_sequence": self.deck_a_sequence, "left_out": self.left_out()},
        }


def times(deck: int, mine: int) -> str:
    return f"the deck's figure is {deck / mine:.1f} times that" if deck >= mine else f"{mine / deck:.1f} times the deck's figure"


def plan_block(
    *,
    width: int = 32,
    heads: int = 2,
    key_width: int | None = 32,
    feed_forward: int = 32,
    tokens: int = 600,
    activation: str = "relu",
    norm: str = "layer",
) -> BlockPlan:
    """One encoder block on a sequence of `tokens`; the defaults are the deck's."""
    for name, value in (
        ("width", width),
        ("heads", heads),
        ("key_width", key_width),
        ("feed_forward", feed_forward),
        ("tokens", tokens),
    ):
        if value is not None and value < 1:
            raise UserError(f"{name} = {value}: a block needs at least 1")
    if key_width is None and width % heads:
        raise UserError(f"width {width} is not divisible by heads {heads}: give key_width")
    shape = BlockConfig(width, heads, feed_forward, key_width, activation=activation, norm=norm)
    with torch.device("meta"):
        block = Block(shape)
    return BlockPlan(shape, tokens, count_components(block, tokens, tokens, prefix="encoder.blocks.0."))
