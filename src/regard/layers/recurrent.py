"""Recurrent networks: torch's fused cells (Elman 1990; Hochreiter & Schmidhuber 1997; Cho et al. 2014), and what a decoder of
them remembers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CELLS: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@dataclass
class Carry:
    """The state of stacked cells, rows first: hidden (rows, layers, H), an LSTM's cell (rows, layers, H), and what is
    fed back."""

    hidden: Tensor
    cell: Tensor | None = None
    fed: Tensor | None = None                                                     # (rows, F)

    def parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.hidden, self.cell, self.fed

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was."""
        self.hidden, self.cell, self.fed = (None if part is None else part[rows] for part in self.parts())  # type: ignore[assignment]

    def where(self, chosen: Tensor, other: "Carry") -> "Carry":
        """This state in the chosen rows, the other elsewhere."""
        def pick(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            if mine is None or theirs is None:
                return mine
            return torch.where(chosen.view(-1, *[1] * (mine.dim() - 1)), mine, theirs)

        return Carry(*(pick(mine, theirs) for mine, theirs in zip(self.parts(), other.parts())))  # type: ignore[arg-type]

    @property
    def rows(self) -> int:
        return self.hidden.size(0)

    @staticmethod
    def join(carries: "Sequence[Carry]") -> "Carry":
        parts = zip(*(carry.parts() for carry in carries))
        return Carry(*(None if part[0] is None else torch.cat(part) for part in parts))  # type: ignore[arg-type]


class Recurrent(nn.Module):
    """Stacked cells over a sequence, in one fused call: (B, T, D) -> (B, T, H)."""

    def __init__(self, cell: str, width: int, hidden: int, layers: int = 1, *, bidirectional: bool = False, dropout: float = 0.0):
        super().__init__()
        self.layers, self.directions = layers, 2 if bidirectional else 1
        assert hidden % self.directions == 0, "two directions share the width"
        self.fused = CELLS[cell](width, hidden // self.directions, layers, batch_first=True, bidirectional=bidirectional,
                                 dropout=dropout if layers > 1 else 0.0)

    def read(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Carry]:
        """A whole batch, each row up to its length: the states at every position (B, S, H), and the last ones of each layer."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, last = self.fused(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
        return states, self.carried(last)

    def forward(self, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Go on from a state, one direction only."""
        hidden = carry.hidden.transpose(0, 1).contiguous()                        # (layers, rows, H)
        cell = None if carry.cell is None else carry.cell.transpose(0, 1).contiguous()
        states, last = self.fused(x, hidden if cell is None else (hidden, cell))
        return states, self.carried(last)

    def carried(self, last: Tensor | tuple[Tensor, Tensor]) -> Carry:
        hidden, cell = last if isinstance(last, tuple) else (last, None)
        return Carry(self.beside(hidden), None if cell is None else self.beside(cell))

    def beside(self, last: Tensor) -> Tensor:
        """The directions of a layer side by side: (layers · directions, rows, h) -> (rows, layers, H)."""
        return last.unflatten(0, (self.layers, self.directions)).permute(2, 0, 1, 3).flatten(2)
