"""Endpoints of views that look into a model: what each layer would predict, one text through the model, heads over many texts.

POST /v1/lens    ViewRequest -> LensResponse
POST /v1/flow    ViewRequest -> FlowResponse
POST /v1/search  HeadSearchRequest -> HeadSearchResponse

Their data are those of the pages that `regard show` writes, and one script draws both.
"""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from regard.server.jobs import ModelRequest, json_response
from regard.server.network.json_body import JsonRoute
from regard.server.request_types import ApiRequest, Text, Word
from regard.server.response_types import ApiResponse
from regard.show.figures.flow_diagram import flow_data
from regard.show.figures.lens_grid import lens_data
from regard.show.forward_pass.flow import record_flow
from regard.show.forward_pass.lens import logit_lens
from regard.show.search import NUM_SENTENCES, HeadSearch, search_heads, search_texts
from regard.tasks.base import Run

MAX_SENTENCES = 200
router = APIRouter(prefix="/v1", route_class=JsonRoute)


class ViewRequest(ApiRequest):
    """A text to look at; of a translator, with its translation."""

    text: Text


class HeadSearchRequest(ApiRequest):
    """Sentences to search, by default those of the model's validation set."""

    text: Annotated[list[Text], Field(min_length=1, max_length=MAX_SENTENCES)] | None = None
    number: Annotated[int, Field(ge=1, le=MAX_SENTENCES)] = NUM_SENTENCES
    """Of the validation set."""
    word: Word | None = None
    """Only hits of this query."""


class HeadHitItem(ApiResponse):
    """Where a head puts most weight on one key; indices of the sentence and of its tokens count from 0."""

    sentence: int
    query: int
    key: int
    weight: float
    relation: str


class SearchedHeadItem(ApiResponse):
    """A head: the weight and the chance weight on each relation, and the sentences in which it attends most to one token."""

    kind: str | None
    name: str
    layer: int
    head: int
    role: str
    weights: dict[str, tuple[float, float]]
    hits: list[HeadHitItem]


class HeadSearchResponse(ApiResponse):
    """`tokens[kind][sentence]` are queries and keys, None for a sentence without hits; the kind is "" where there is only one."""

    model: str
    texts: list[str]
    skipped: int
    relations: list[str]
    heads: list[SearchedHeadItem]
    tokens: dict[str, list[tuple[list[str], list[str]] | None]]


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
    """All stages of one text through the model."""

    model: str
    name: str
    sides: dict[str, list[str]]
    ids: dict[str, list[int]]
    heads: int
    focus: dict[str, int]
    stages: list[StageItem]


@router.post("/lens", response_model=LensResponse)
async def lens(body: ViewRequest, request: Request) -> Response:
    """Return what each layer would predict at each position, if it were the last."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "lens", body.ablate)
    found = await model_request.analyse(lambda run: lens_data(logit_lens(run, body.text)))
    return json_response(LensResponse(model=model_request.model.name, **found))


@router.post("/flow", response_model=FlowResponse)
async def flow(body: ViewRequest, request: Request) -> Response:
    """Return every stage of one text through the model, with the model's own numbers."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "flow", body.ablate)
    name = model_request.model.name

    def encode(run: Run) -> bytes:
        data: dict[str, Any] = {"model": name, **flow_data(record_flow(run, body.text))}
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()

    return Response(await model_request.analyse(encode), media_type="application/json")


@router.post("/search", response_model=HeadSearchResponse)
async def search(body: HeadSearchRequest, request: Request) -> Response:
    """Return what every head attends to in a set of sentences, and where it attends most to one token."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "search", body.ablate)
    name = model_request.model.name

    def encode(run: Run) -> bytes:
        texts = search_texts(run, "valid", body.number) if body.text is None else body.text
        return head_search_response(name, search_heads(run, texts, word=body.word)).model_dump_json().encode()

    return Response(await model_request.analyse(encode), media_type="application/json")


def head_search_response(model: str, found: HeadSearch) -> HeadSearchResponse:
    """Return the response to a search: the tokens of those sentences that are hits."""
    used = {(head.kind, hit.sentence) for head in found.heads for hit in head.hits}

    def tokens(kind: str | None, sentence: int) -> tuple[list[str], list[str]] | None:
        if (kind, sentence) not in used:
            return None
        queries, keys = found.tokens[kind, sentence]
        return list(queries), list(keys)

    heads = [
        SearchedHeadItem(
            kind=head.kind,
            name=head.name,
            layer=head.layer,
            head=head.head,
            role=head.role.role,
            weights={relation: (round(a, 4), round(b, 4)) for relation, (a, b) in head.role.weights.items()},
            hits=[HeadHitItem(**{**hit._asdict(), "weight": round(hit.weight, 4)}) for hit in head.hits],
        )
        for head in found.heads
    ]
    kinds = dict.fromkeys(head.kind for head in found.heads)
    by_kind = {kind or "": [tokens(kind, sentence) for sentence in range(len(found.texts))] for kind in kinds}
    return HeadSearchResponse(
        model=model, texts=found.texts, skipped=found.skipped, relations=found.relations, heads=heads, tokens=by_kind
    )
