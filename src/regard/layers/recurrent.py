"""Recurrent networks: torch's fused cells (Elman 1990; Hochreiter & Schmidhuber 1997; Cho et al. 2014), and what a decoder of
them remembers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

CELLS: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@dataclass
class RecurrentState:
    """The state of stacked cells, rows first: hidden (rows, layers, H), an LSTM's cell (rows, layers, H), and what is
    fed back."""

    hidden: Tensor
    cell: Tensor | None = None
    fed: Tensor | None = None  # (rows, F)

    def parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.hidden, self.cell, self.fed

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was."""
        self.hidden, self.cell, self.fed = (None if part is None else part[rows] for part in self.parts())  # type: ignore[assignment]

    def where(self, chosen: Tensor, other: "RecurrentState") -> "RecurrentState":
        """This state in the chosen rows, the other elsewhere."""

        def pick(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            if mine is None or theirs is None:
                return mine
            return torch.where(chosen.view(-1, *[1] * (mine.dim() - 1)), mine, theirs)

        return RecurrentState(*(pick(mine, theirs) for mine, theirs in zip(self.parts(), other.parts())))  # type: ignore[arg-type]

    @property
    def rows(self) -> int:
        return self.hidden.size(0)

    @staticmethod
    def join(carries: "Sequence[RecurrentState]", spare: int = 0) -> "RecurrentState":
        parts = zip(*(carry.parts() for carry in carries))
        return RecurrentState(*(None if part[0] is None else torch.cat(part) for part in parts))  # type: ignore[arg-type]


class RecurrentLayers(nn.Module):
    """Stacked cells over a sequence, each layer in one fused call: (B, T, D) -> (B, T, H)."""

    def __init__(self, cell: str, width: int, hidden: int, layers: int = 1, *, bidirectional: bool = False, dropout: float = 0.0):
        super().__init__()
        self.directions, self.hidden = 2 if bidirectional else 1, hidden
        assert hidden % self.directions == 0, "two directions share the width"
        self.layers = nn.ModuleList(
            CELLS[cell](width if first else hidden, hidden // self.directions, batch_first=True, bidirectional=bidirectional)
            for first in [True] + [False] * (layers - 1)
        )
        self.dropout = nn.Dropout(dropout)

    def read(self, x: Tensor, lengths: Tensor) -> tuple[list[Tensor], RecurrentState]:
        """A whole batch, each row up to its length: every layer's states (B, S, H), and the last ones of each."""
        packed = pack_padded_sequence(x, lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)
        layers, ends = [], []
        for number, cells in enumerate(self.layers):
            packed, last = cells(self.dropped(packed) if number else packed)
            layers.append(pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))[0])
            ends.append(last)
        return layers, self.carried(ends)

    def dropped(self, packed: PackedSequence) -> PackedSequence:
        return packed._replace(data=self.dropout(packed.data))

    def forward(self, x: Tensor, carry: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Go on from a state, one direction only."""
        ends = []
        for number, cells in enumerate(self.layers):
            hidden = carry.hidden[:, number].contiguous()[None]  # (1, rows, H)
            before = hidden if carry.cell is None else (hidden, carry.cell[:, number].contiguous()[None])
            x, last = cells(self.dropout(x) if number else x, before)
            ends.append(last)
        return x, self.carried(ends)

    def nothing(self, rows: int, like: Tensor) -> RecurrentState:
        """The state before anything was read."""
        blank = like.new_zeros(rows, len(self.layers), self.hidden)
        return RecurrentState(blank, blank if isinstance(self.layers[0], nn.LSTM) else None)

    def carried(self, ends: Sequence[Any]) -> RecurrentState:
        """The last states of each layer, an LSTM's with its cells; the directions side by side."""
        both = [last if isinstance(last, tuple) else (last, None) for last in ends]
        hidden = torch.stack([beside(hidden) for hidden, _ in both], dim=1)  # (rows, layers, H)
        return RecurrentState(hidden, None if both[0][1] is None else torch.stack([beside(cell) for _, cell in both], dim=1))


def beside(last: Tensor) -> Tensor:
    """(directions, rows, h) -> (rows, H)."""
    return last.transpose(0, 1).flatten(1)
