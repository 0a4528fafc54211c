"""The flow view: one text through a model as a sequence of stages, each with a sentence, its equation and the model's numbers."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from regard.show.figures.html_pages import read_css, script_page
from regard.show.figures.labels import label

PanelKind = Literal["signed", "scores", "weights"]


@dataclass(frozen=True)
class Panel:
    """A matrix of a stage: (rows, columns), or with heads (H, rows, columns). −∞ is a masked score."""

    symbol: str
    values: np.ndarray
    rows: str
    """The side whose tokens are the rows."""
    columns: str = ""
    """The side whose tokens are the columns; empty where columns are components of a vector."""
    operator: str = ""
    """Written before it: "+", "=", "→", "×"."""
    kind: PanelKind = "signed"

    @property
    def shape(self) -> str:
        *_, rows, columns = self.values.shape
        return f"{rows} × {columns}"


@dataclass(frozen=True)
class Candidates:
    """The most probable tokens of each position, with logit and probability."""

    rows: str
    top: Sequence[Sequence[tuple[str, float, float]]]
    chosen: Sequence[str]
    """The token that the text has there, or that the model writes."""


@dataclass(frozen=True)
class Stage:
    """One step of the computation."""

    part: str
    """Of the model: "encoder", "decoder", "output"."""
    layer: int | None
    name: str
    title: str
    sentence: str
    equation: str
    panels: Sequence[Panel] = ()
    candidates: Candidates | None = None
    sublayer: str = ""

    def panel(self, symbol: str) -> Panel:
        """Return the panel with this symbol."""
        return next(panel for panel in self.panels if panel.symbol == symbol)

    @property
    def place(self) -> str:
        return " · ".join(word for word in (self.part, f"layer {self.layer}" if self.layer else "", self.sublayer) if word)


@dataclass(frozen=True)
class ModelFlow:
    """All stages of one text through a model."""

    name: str
    sides: Mapping[str, Sequence[str]]
    """The tokens of each side."""
    ids: Mapping[str, Sequence[int]]
    stages: Sequence[Stage]
    heads: int
    focus: Mapping[str, int]
    """The token of each side that is selected first."""

    def find(self, name: str, *, layer: int | None = None, part: str | None = None, sublayer: str | None = None) -> Stage:
        """Return the first stage with this name, and where given, of this layer, part and sub-layer."""
        return next(
            stage
            for stage in self.stages
            if stage.name == name
            and layer in (None, stage.layer)
            and part in (None, stage.part)
            and sublayer in (None, stage.sublayer)
        )

    @property
    def size(self) -> int:
        """Numbers in all panels."""
        return sum(panel.values.size for stage in self.stages for panel in stage.panels)


def flow_text(flow: ModelFlow) -> str:
    """Return the stages for a terminal: what is computed, its equation and its shapes."""
    lines: list[str] = []
    place = None
    for stage in flow.stages:
        if stage.place != place:
            place = stage.place
            lines += ["", place]
        shapes = ", ".join(f"{panel.symbol} {panel.shape}" for panel in stage.panels)
        lines += [f"  {stage.title}: {stage.sentence}", f"    {stage.equation}" + (f"    {shapes}" if shapes else "")]
        if stage.candidates is not None:
            tokens, found = flow.sides[stage.candidates.rows], stage.candidates.top
            lines += [
                f"    {label(token, 16)} → " + ", ".join(f"{label(word, 16)} {p:.2f}" for word, _, p in top[:3])
                for token, top in zip(tokens, found)
            ]
    return "\n".join(lines[1:])


def flow_data(flow: ModelFlow) -> dict[str, Any]:
    """Return the flow as JSON, for the script that draws it on pages; matrices are half-precision floats in base64."""
    return {
        "name": flow.name,
        "sides": {name: [label(word, 24) for word in words] for name, words in flow.sides.items()},
        "ids": {name: list(ids) for name, ids in flow.ids.items()},
        "heads": flow.heads,
        "focus": dict(flow.focus),
        "stages": [stage_data(stage) for stage in flow.stages],
    }


def stage_data(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = {
        "part": stage.part,
        "layer": stage.layer,
        "sublayer": stage.sublayer,
        "name": stage.name,
        "title": stage.title,
        "sentence": stage.sentence,
        "equation": stage.equation,
        "panels": [
            {
                "symbol": panel.symbol,
                "operator": panel.operator,
                "rows": panel.rows,
                "columns": panel.columns,
                "kind": panel.kind,
                "shape": list(panel.values.shape),
                "values": encode_halves(panel.values),
            }
            for panel in stage.panels
        ],
    }
    if stage.candidates is not None:
        found["candidates"] = {
            "rows": stage.candidates.rows,
            "chosen": [label(word, 24) for word in stage.candidates.chosen],
            "top": [[[label(word, 24), round(logit, 3), round(p, 5)] for word, logit, p in top] for top in stage.candidates.top],
        }
    return found


def encode_halves(values: np.ndarray) -> str:
    """Return numbers as little-endian half-precision floats in base64; beyond ±65504 they are clipped, but for infinities."""
    finite = np.where(np.isinf(values), values, np.clip(values, -65504, 65504))
    return b64encode(finite.astype("<f2").tobytes()).decode("ascii")


def flow_page(flow: ModelFlow, *, title: str, stage: int = 0, head: int = 0, token: int | None = None) -> str:
    """Return a self-contained page that goes through the stages, with buttons and arrow keys."""
    data = {**flow_data(flow), "at": {"stage": stage, "head": head, "token": token}}
    return script_page(
        title,
        '<div id="stage" class="flow"></div>\n',
        data,
        "flow_diagram.js",
        read_css("flow_diagram.css"),
        start="const colours = { colourOf, paintScale, headColour: i => headColour(i, data.heads, isDark()) };\n"
        "repaint = drawFlow(stage, data, { ...data.at, ...colours });",
    )
