"""One encoder block: its parameters, its multiplications, and the short-cut count that lectures give for them."""

from dataclasses import asdict, dataclass

import torch

from regard.errors import UserError
from regard.layers.block import Block, BlockConfig
from regard.plan.flops import ComponentPlan, count_components


@dataclass(frozen=True)
class BlockPlan(ComponentPlan):
    """The cost of a block on one sequence of this many tokens."""

    config: BlockConfig
    tokens: int

    @property
    def lecture_macs_per_position(self) -> int:
        """The lecture's multiplications for one position: width · width · tokens."""
        return self.config.width**2 * self.tokens

    @property
    def lecture_macs(self) -> int:
        """The lecture's multiplications for every position of the sequence."""
        return self.lecture_macs_per_position * self.tokens

    def macs_per_position(self, *operations: str) -> int:
        """Return the multiplications per position of these operations."""
        return sum(c.macs for c in self.components if c.location.operation in operations) // self.tokens

    def notes(self) -> list[str]:
        """Return how the lecture's count relates to the block's actual work, and what it leaves out."""
        width, heads, n = self.config.width, self.config.heads, self.tokens
        key_width = self.config.key_width or width // heads
        lecture, exact = self.lecture_macs_per_position, self.total.macs // n
        ratio = (
            f"the lecture's figure is {lecture / exact:.1f} times that"
            if lecture >= exact
            else f"{exact / lecture:.1f} times the lecture's figure"
        )
        return [
            f"It charges {width}·{width} multiplications for each of the {n:,} positions attended to, as if a {width} × {width} "
            f"matrix were applied again for every pair. Keys are projected once; a pair then costs {key_width} per head: "
            f"{heads}·{key_width}·{n:,} = {self.macs_per_position('scores'):,} per position for the scores.",
            f"It leaves out: that there {'is 1 head' if heads == 1 else f'are {heads} heads'}; the mixing of the values "
            f"({self.macs_per_position('mixing'):,}); the projections to queries, keys, values and output "
            f"({self.macs_per_position('queries', 'keys', 'values', 'output'):,}); "
            f"the feed-forward layer ({self.macs_per_position('inner', 'gate', 'outer'):,}); "
            f"the {heads * n:,} exponentials of the softmax; additions, biases, scaling, norms; "
            "and the backward pass, twice the forward pass.",
            f"Counted on the block itself: {exact:,} multiplications per position, {self.total.macs:,} per sequence: {ratio}. "
            "Its conclusion holds: the cost of a sequence grows with the square of its length.",
        ]

    def to_json(self) -> dict[str, object]:
        return {
            "shape": asdict(self.config),
            "tokens": self.tokens,
            "parameters": self.parameters,
            "components": [{**asdict(c.location), "parameters": c.parameters, "macs": c.macs} for c in self.components],
            "macs": self.total.macs,
            "macs_per_position": self.total.macs // self.tokens,
            "lecture": {
                "macs_per_position": self.lecture_macs_per_position,
                "macs": self.lecture_macs,
                "notes": self.notes(),
            },
        }


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
    """Return the cost of one encoder block on a sequence of `tokens`; the defaults are the lecture's."""
    sizes = {"width": width, "heads": heads, "key_width": key_width, "feed_forward": feed_forward, "tokens": tokens}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UserError(f"{name} = {value}: a block needs at least 1")
    if key_width is None and width % heads:
        raise UserError(f"width {width} is not divisible by heads {heads}: give key_width")
    config = BlockConfig(width, heads, feed_forward, key_width, activation=activation, norm=norm)
    with torch.device("meta"):
        block = Block(config)
    return BlockPlan(config, tokens, components=count_components(block, tokens, tokens, prefix="encoder.blocks.0."))
