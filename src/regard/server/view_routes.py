"""Endpoints of views that look into a model: what each layer would predict, and one text through the model.

POST /v1/lens    ViewRequest -> LensResponse
POST /v1/flow    ViewRequest -> FlowResponse

Their data are those of the pages that `regard show` writes, and one script draws both.
"""

import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.server.jobs import ModelRequest, json_response
from regard.server.network.json_body import JsonRoute
from regard.server.request_types import ApiRequest, Text
from regard.server.response_types import ApiResponse
from regard.show.figures.flow_diagram import flow_data
from regard.show.figures.lens_grid import lens_data
from regard.show.forward_pass.flow import record_flow
from regard.show.forward_pass.lens import logit_lens
from regard.tasks.base import Run

router = APIRouter(prefix="/v1", route_class=JsonRoute)


class ViewRequest(ApiRequest):
    """A text to look at; of a translator, with its translation."""

    text: Text


class LensCellItem(ApiResponse):
    """What one layer predicts at one position."""

    top: list[tuple[str, float]]
    """The most probable tokens, best first."""
    answer: float
    """The probability of the model's answer."""
    rank: int
    entropy: float
    agrees: bool


class LensResponse(ApiResponse):
    """The logit lens: `cells[layer][position]`; layer 0 is the embeddings, the last the model itself."""

    model: str
    reads: list[str]
    targets: list[str]
    answers: list[str]
    layers: list[str]
    decided: list[int]
    """The first layer at each position from which on all agree with the model."""
    cells: list[list[LensCellItem]]


class PanelItem(ApiResponse):
    """A matrix of a stage; `values` are little-endian half-precision floats in base64, of this shape."""

    symbol: str
    operator: str
    rows: str
    columns: str
    kind: str
    shape: list[int]
    values: str


class CandidatesItem(ApiResponse):
    """The most probable tokens of each position, with logit and probability, and the token that the text has."""

    rows: str
    chosen: list[str]
    top: list[list[tuple[str, float, float]]]


class StageItem(ApiResponse):
    """One step of the computation."""

    part: str
    layer: int | None
    sublayer: str
    name: str
    title: str
    sentence: str
    equation: str
    panels: list[PanelItem]
    candidates: CandidatesItem | None = None


class FlowResponse(ApiResponse):
    """All stages of one text through the model, and the colours that they are drawn with."""

    model: str
    name: str
    sides: dict[str, list[str]]
    ids: dict[str, list[int]]
    heads: int
    focus: dict[str, int]
    headColours: list[str]
    signed: str
    ramp: str
    stages: list[StageItem]


@router.post("/lens", response_model=LensResponse)
async def lens(body: ViewRequest, request: Request) -> Response:
    """Return what each layer would predict at each position, if it were the last."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "lens")
    found = await model_request.analyse(lambda run: lens_data(logit_lens(run, body.text)))
    return json_response(LensResponse(model=model_request.model.name, **found))


@router.post("/flow", response_model=FlowResponse)
async def flow(body: ViewRequest, request: Request) -> Response:
    """Return every stage of one text through the model, with the model's own numbers."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "flow")
    name = model_request.model.name

    def encode(run: Run) -> bytes:
        data: dict[str, Any] = {"model": name, **flow_data(record_flow(run, body.text))}
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()

    return Response(await model_request.analyse(encode), media_type="application/json")
