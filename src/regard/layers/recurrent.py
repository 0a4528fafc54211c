"""Recurrent networks over torch's fused cells (Elman 1990; Hochreiter & Schmidhuber 1997; Cho et al. 2014), their state, and
their dropout: one mask for all time steps (Gal & Ghahramani 2016), and on the recurrent weights (Merity et al. 2018)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CELLS: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
STEPS: dict[type[nn.Module], Any] = {nn.RNN: torch.rnn_tanh_cell, nn.LSTM: torch.lstm_cell, nn.GRU: torch.gru_cell}
"""The same cells for one time step, with weights as arguments. On a GPU the layers would cast and copy all their weights in every
call under autocast."""

SEQUENCES: dict[type[nn.Module], Any] = {nn.RNN: torch.rnn_tanh, nn.LSTM: torch.lstm, nn.GRU: torch.gru}
"""The same cells for a sequence, with weights as arguments."""


class VariationalDropout(nn.Dropout):
    """Dropout of (B, T, D) with one mask (B, 1, D) for all time steps of a sequence (Gal & Ghahramani 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * F.dropout(torch.ones_like(x[:, :1]), self.p) if self.training and self.p else x


@dataclass
class RecurrentState:
    """The state of stacked cells, rows first: hidden states (rows, layers, H), an LSTM's cells (rows, layers, H), and the
    decoder's input feed (rows, F)."""

    hidden: Tensor
    cell: Tensor | None = None
    input_feed: Tensor | None = None

    def _parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.hidden, self.cell, self.input_feed

    def reorder(self, rows: Tensor) -> None:
        """Make row i what row rows[i] was."""
        self.hidden, self.cell, self.input_feed = (None if part is None else part[rows] for part in self._parts())  # type: ignore[assignment]

    def where(self, chosen: Tensor, other: "RecurrentState") -> "RecurrentState":
        """Return this state in the chosen rows and the other one elsewhere."""

        def pick(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            if mine is None or theirs is None:
                return mine
            return torch.where(chosen.view(-1, *[1] * (mine.dim() - 1)), mine, theirs)

        return RecurrentState(*(pick(mine, theirs) for mine, theirs in zip(self._parts(), other._parts())))  # type: ignore[arg-type]

    @property
    def rows(self) -> int:
        return self.hidden.size(0)

    @staticmethod
    def join(states: "Sequence[RecurrentState]", trim: int = 0) -> "RecurrentState":
        """Concatenate the rows of several states; `trim` concerns KV caches only."""
        parts = zip(*(state._parts() for state in states))
        return RecurrentState(*(None if part[0] is None else torch.cat(part) for part in parts))  # type: ignore[arg-type]


class RecurrentLayers(nn.Module):
    """Stacked recurrent layers, each in one fused call: (B, T, D) -> (B, T, H).

    While training, `dropout` is applied between layers, and `weight_dropout` to the hidden-to-hidden weights of `forward`, with
    one mask for all sequences and time steps (DropConnect, Wan et al. 2013; Merity et al. 2018, sec. 2).
    """

    def __init__(
        self,
        cell: str,
        width: int,
        hidden: int,
        layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float | nn.Dropout = 0.0,
        weight_dropout: float = 0.0,
    ):
        super().__init__()
        self.directions, self.hidden, self.weight_dropout = 2 if bidirectional else 1, hidden, weight_dropout
        assert hidden % self.directions == 0, "two directions share the width"
        self.layers = nn.ModuleList(
            CELLS[cell](width if first else hidden, hidden // self.directions, batch_first=True, bidirectional=bidirectional)
            for first in [True] + [False] * (layers - 1)
        )
        self.dropout = dropout if isinstance(dropout, nn.Dropout) else nn.Dropout(dropout)

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[list[Tensor], RecurrentState]:
        """Read whole sequences, each row up to its length; return every layer's states (B, S, H), and their last states."""
        lengths = lengths.clamp(min=1)
        if x.is_cuda and not isinstance(self.layers[0], nn.LSTM):
            return self._encode_padded(x, lengths)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        layers, last_states = [], []
        for number, cells in enumerate(self.layers):
            packed, last = cells(packed._replace(data=self.dropout(packed.data)) if number else packed)
            layers.append(pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))[0])
            last_states.append(last)
        return layers, _stack_states(last_states)

    def _encode_padded(self, x: Tensor, lengths: Tensor) -> tuple[list[Tensor], RecurrentState]:
        """Read the padding too, and ignore what comes of it: packing takes the lengths to the host, and such a step cannot be
        captured in a CUDA graph. Not for an LSTM, whose fused layer does not output the cell state at the end of a row."""
        layers, last_states = [], []
        for number, cells in enumerate(self.layers):
            x, last = _read_padded(cells, self.dropout(x) if number else x, lengths)
            layers.append(x)
            last_states.append(last)
        return layers, _stack_states(last_states)

    def forward(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Continue from a state, in one direction only."""
        last_states = []
        for number, cells in enumerate(self.layers):
            hidden = state.hidden[:, number].contiguous()[None]  # (1, rows, H)
            before = hidden if state.cell is None else (hidden, state.cell[:, number].contiguous()[None])
            x = self.dropout(x) if number else x
            if self.training and self.weight_dropout:
                x, last = _drop_weights(cells, x, before, self.weight_dropout)
            else:
                x, last = _one_step(cells, x, before) if x.size(1) == 1 else cells(x, before)
            last_states.append(last)
        return x, _stack_states(last_states)

    def zero_state(self, rows: int, like: Tensor) -> RecurrentState:
        """Return the state before anything is read."""
        zeros = like.new_zeros(rows, len(self.layers), self.hidden)
        return RecurrentState(zeros, zeros if isinstance(self.layers[0], nn.LSTM) else None)


def _one_step(cells: Any, x: Tensor, before: Any) -> tuple[Tensor, Any]:
    """Run a layer for one time step, (rows, 1, D) -> (rows, 1, H); states have a first dimension of 1."""
    lstm = isinstance(before, tuple)
    after = STEPS[type(cells)](x[:, 0], tuple(part[0] for part in before) if lstm else before[0], *cells.all_weights[0])
    return (after[0] if lstm else after)[:, None], tuple(part[None] for part in after) if lstm else after[None]


def _read_padded(cells: Any, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Run a layer over each row up to its length, from zero states; return its states (B, S, H), zeros beyond the ends, and the
    last states (directions, B, h)."""
    zeros = x.new_zeros(1, len(x), cells.hidden_size)
    ends = (lengths - 1)[:, None, None]
    inside = torch.arange(x.size(1), device=x.device)[:, None] <= ends  # (B, S, 1)
    directions, last = [], []
    for backward, weights in enumerate(cells.all_weights):
        states, _ = _run_layer(cells, reverse_sequences(x, lengths) if backward else x, zeros, weights)
        last.append(states.take_along_dim(ends, 1)[:, 0])
        directions.append(reverse_sequences(states, lengths) if backward else states)
    return torch.cat(directions, dim=-1).masked_fill(~inside, 0.0), torch.stack(last)


def _drop_weights(cells: Any, x: Tensor, before: Any, rate: float) -> tuple[Tensor, Any]:
    """Run a layer, (rows, T, D) -> (rows, T, H), with dropout on its hidden-to-hidden weights."""
    weight_ih, weight_hh, *biases = cells.all_weights[0]
    return _run_layer(cells, x, before, [weight_ih, F.dropout(weight_hh, rate), *biases])


def _run_layer(cells: Any, x: Tensor, before: Any, weights: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """Run one direction of a layer, (rows, T, D) -> (rows, T, H), with these weights in place of its own."""
    flat = torch.cat([weight.flatten() for weight in weights])  # one chunk of memory, as cuDNN needs it
    if scale := _gradient_scale(x):
        x, flat = _scale_gradient(x, 1 / scale), _scale_gradient(flat, 1 / scale)
        before = _map_state(lambda part: _scale_gradient(part, 1 / scale), before)
    weights = [part.view_as(weight) for part, weight in zip(flat.split([w.numel() for w in weights]), weights)]
    x, *parts = SEQUENCES[type(cells)](x, before, weights, True, 1, 0.0, True, False, True)
    last = tuple(parts) if len(parts) > 1 else parts[0]
    if scale:
        x, last = _scale_gradient(x.float(), scale), _map_state(lambda part: _scale_gradient(part.float(), scale), last)
    return x, last


def _gradient_scale(x: Tensor) -> float:
    """Return the factor of the gradients within a layer, 0 for none: under autocast cuDNN computes in float16, whatever the type
    of autocast, and would round the gradient of a mean over thousands of tokens to few bits (Micikevicius et al. 2018, sec. 3.2).
    """
    return 1024.0 if x.is_cuda and torch.is_autocast_enabled("cuda") else 0.0


def _scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, whose gradient is multiplied by the factor on its way back."""
    if x.requires_grad:
        x = x.view_as(x)
        x.register_hook(lambda gradient: gradient * factor)
    return x


def _map_state(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Apply a function to a layer's state, or to both parts of an LSTM's."""
    return tuple(map(function, state)) if isinstance(state, tuple) else function(state)


def _stack_states(last_states: Sequence[Any]) -> RecurrentState:
    """Stack the last states of each layer, an LSTM's with its cells, the two directions concatenated."""
    pairs = [last if isinstance(last, tuple) else (last, None) for last in last_states]
    hidden = torch.stack([_join_directions(hidden) for hidden, _ in pairs], dim=1)  # (rows, layers, H)
    return RecurrentState(hidden, None if pairs[0][1] is None else torch.stack([_join_directions(c) for _, c in pairs], dim=1))


def _join_directions(last: Tensor) -> Tensor:
    """(directions, rows, h) -> (rows, H)."""
    return last.transpose(0, 1).flatten(1)


def reverse_sequences(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first `length` positions of each row: (B, S, D) -> (B, S, D)."""
    positions = torch.arange(x.size(1), device=x.device)
    reverse = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)  # (B, S)
    return x.gather(1, reverse[..., None].expand_as(x))
