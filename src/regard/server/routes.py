"""The endpoints under /v1, one for each verb of a run.

    GET  /v1/models                          -> ModelsResponse
    GET  /v1/models/NAME/examples            -> ExamplesResponse
    POST /v1/translate    TranslateRequest   -> TranslateResponse    stream: true -> events, see below
    POST /v1/generate     GenerateRequest    -> GenerateResponse     stream: true -> events
    POST /v1/next-token   NextTokenRequest   -> NextTokenResponse
    POST /v1/fill         FillRequest        -> FillResponse
    POST /v1/classify     ClassifyRequest    -> ClassifyResponse
    POST /v1/tag          TagRequest         -> TagResponse
    POST /v1/answer       AnswerRequest      -> AnswerResponse
    POST /v1/embed        EmbedRequest       -> EmbedResponse
    POST /v1/caption      CaptionRequest     -> CaptionResponse      stream: true -> events
    POST /v1/match        MatchRequest       -> MatchResponse
    POST /v1/draw         DrawRequest        -> DrawResponse
    POST /v1/attention    AttentionRequest   -> AttentionResponse, or the file itself with format = attn, svg or png
    POST /v1/explain      ExplainRequest     -> ExplainResponse

Every error is an ErrorResponse: {"error": {"message", "type", "param", "code"}}.

A stream is text/event-stream with lines `data: JSON`: one TokenEvent per token, in order; then a DoneEvent, whose `done` is the
response without stream; then `data: [DONE]`. An error after the first event is an event {"error": {...}}, followed by [DONE].

The page is `page/index.html` at /, and its files are at /page/NAME.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from regard.decoding.sampling import SamplingParams, sample_index
from regard.server import render, request_types, response_types
from regard.server.errors import ApiError
from regard.server.examples import find_examples
from regard.server.jobs import ModelRequest, RunType, as_list, json_response
from regard.server.models import ServedModels
from regard.server.network.json_body import JsonRoute
from regard.server.next_token import next_token_response
from regard.server.response_types import Result, ResultsResponse
from regard.server.worker import StartJob
from regard.tasks.answer import AnswerRun
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.contrastive import ContrastiveRun
from regard.tasks.language import LanguageRun
from regard.tasks.masked import MaskedRun
from regard.tasks.shared.requests import DecodingTask, StreamedToken, caption_task, generate_task, translate_task
from regard.tasks.span_corruption import SpanCorruptionRun
from regard.tasks.tag import TagRun
from regard.tasks.text_to_image import TextToImageRun
from regard.tasks.translate import TranslateRun, Translation

router = APIRouter(prefix="/v1", route_class=JsonRoute)
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": response_types.ErrorResponse, "description": description}
    for status, description in (
        (400, "not JSON"),
        (401, "no token"),
        (403, "sent by another site's page"),
        (404, "no such model"),
        (408, "the request arrived too slowly"),
        (413, "too large"),
        (415, "not declared as JSON"),
        (421, "another Host"),
        (422, "invalid, or refused by the model"),
        (429, "too many texts of one client are waiting"),
        (500, "internal error"),
        (503, "the queue is full, the time is up, or the server is stopping"),
    )
}
EVENT_SCHEMA = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}}
FILE_TYPES = {"attn": "application/octet-stream", "svg": "image/svg+xml", "png": "image/png"}
FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in FILE_TYPES.values()}}
}
SEARCH_OPTIONS = {"beam", "length_penalty", "max_tokens", "number", "temperature", "top_k", "top_p", "seed"}


async def respond_decoded(
    model_request: ModelRequest[RunType],
    starts: Sequence[StartJob],
    response_type: type[ResultsResponse[Result]],
    build_results: Callable[[RunType, list[Any]], list[Result]],
    *,
    stream: bool,
    analyse: bool,
    searches: bool = False,
) -> Response:
    """Decode texts and answer with what `build_results` makes of them, called in the analysis worker's thread if it has to
    `analyse`. With `stream`, send the tokens first. A beam search has no certain token before its end: if it `searches`, a text
    without token events is sent as one event when it ends."""
    seen: set[int] = set()

    async def build_response(found: list[Any]) -> ResultsResponse[Result]:
        results = (
            await model_request.analyse(lambda run: build_results(run, found))
            if analyse
            else build_results(model_request.run, found)
        )
        return response_type(model=model_request.model.name, results=results)

    def token_event(index: int, token: StreamedToken) -> response_types.TokenEvent:
        seen.add(index)
        probability = round(token.probability, render.DIGITS)
        return response_types.TokenEvent(index=index, text=token.text, token=token.word, probability=probability)

    def end_event(index: int, result: Any) -> response_types.TokenEvent | None:
        if not searches or index in seen:
            return None
        return response_types.TokenEvent(index=index, text=result[0].text, token="", probability=1.0)

    async def done_event(found: list[Any]) -> response_types.DoneEvent:
        return response_types.DoneEvent(done=(await build_response(found)).model_dump())

    if stream and model_request.ablate:
        raise ApiError(422, "stream: not with ablate; leave one out", code="invalid", param="stream")
    if stream:
        return await model_request.stream(starts, token_event, done_event, end_event)
    return json_response(await build_response(await model_request.decode(starts)))


def search_starts(tasks: Sequence[Callable[..., DecodingTask]], body: request_types.SearchRequest) -> list[StartJob]:
    """Return the jobs of each input's task: one search for its outputs, or one job for each sample."""
    if len(tasks) * body.samples > request_types.MAX_TEXTS:
        message = f"number: {len(tasks)} texts times {body.number} samples are more than {request_types.MAX_TEXTS} texts"
        raise ApiError(422, message, code="invalid", param="number")
    options = body.model_dump(include=SEARCH_OPTIONS) | ({} if body.temperature is None else {"number": 1})
    return [
        partial(task, place=sample_index(place, sample), **options)
        for place, task in enumerate(tasks)
        for sample in range(body.samples)
    ]


def join_samples(found: Sequence[Sequence[Translation]], samples: int) -> list[list[Translation]]:
    """Return the outputs of each input, from those of each job; of an empty text, one."""
    joined = [list(chain(*found[start : start + samples])) for start in range(0, len(found), samples)]
    return [several if any(one.tokens for one in several) else several[:1] for several in joined] if samples > 1 else joined


def generation_starts(run: LanguageRun, prompts: Sequence[str], params: SamplingParams) -> list[StartJob]:
    """Return a job for each sample of each prompt."""
    return [
        partial(generate_task, run, prompt, params, place=place, sample=sample)
        for place, prompt in enumerate(prompts)
        for sample in range(params.number)
    ]


@router.get("/models", response_model=response_types.ModelsResponse)
async def models(request: Request) -> response_types.ModelsResponse:
    """List all models and what each can do."""
    return response_types.ModelsResponse(data=[model.info for model in request.app.state.models.by_name.values()])


@router.get("/models/{name}", response_model=response_types.ModelInfo)
async def model(name: str, request: Request) -> response_types.ModelInfo:
    served: ServedModels = request.app.state.models
    return served.find_name(name).info


@router.get("/models/{name}/examples", response_model=response_types.ExamplesResponse)
async def model_examples(name: str, request: Request, number: Annotated[int, Query(ge=1, le=64)] = 32) -> Response:
    """Return inputs of the model's validation set."""
    model_request: ModelRequest[Run] = ModelRequest(request, request.app.state.models.find_name(name))
    return json_response(await model_request.analyse(lambda run: find_examples(name, run, number)))


@router.post("/translate", response_model=response_types.TranslateResponse, responses=STREAM_RESPONSES)
async def translate(body: request_types.TranslateRequest, request: Request) -> Response:
    """Translate texts; a run of several tasks does the one named by `task`."""
    model_request: ModelRequest[TranslateRun] = ModelRequest.create(request, body.model, "translate", body.ablate)
    run, texts = model_request.run, as_list(body.text)
    if body.task is not None:
        texts = render.require_tasks(run)._prefixed(texts, body.task)
    return await respond_decoded(
        model_request,
        search_starts([partial(translate_task, run, text) for text in texts], body),
        response_types.TranslateResponse,
        lambda run, found: render.translation_results(run, texts, join_samples(found, body.samples), body),
        stream=body.stream,
        analyse=body.alignment or body.beam_tree,
        searches=True,
    )


@router.post("/generate", response_model=response_types.GenerateResponse, responses=STREAM_RESPONSES)
async def generate(body: request_types.GenerateRequest, request: Request) -> Response:
    """Continue prompts."""
    model_request: ModelRequest[LanguageRun] = ModelRequest.create(request, body.model, "generate", body.ablate)
    prompts = as_list(body.prompt)
    if len(prompts) * body.number > request_types.MAX_TEXTS:
        message = f"number: {len(prompts)} prompts times {body.number} are more than {request_types.MAX_TEXTS} texts"
        raise ApiError(422, message, code="invalid", param="number")
    params = SamplingParams(
        body.max_tokens,
        body.temperature,
        body.top_k,
        body.top_p,
        body.repetition_penalty,
        tuple(body.stop),
        body.seed,
        body.number,
    )
    return await respond_decoded(
        model_request,
        generation_starts(model_request.run, prompts, params),
        response_types.GenerateResponse,
        lambda run, found: render.generation_results(run, prompts, found, body),
        stream=body.stream,
        analyse=body.attention,
    )


@router.post("/next-token", response_model=response_types.NextTokenResponse)
async def next_token(body: request_types.NextTokenRequest, request: Request) -> Response:
    """Return the distribution of the token after a text."""
    model_request: ModelRequest[LanguageRun] = ModelRequest.create(request, body.model, "generate", body.ablate)
    name = model_request.model.name
    return json_response(await model_request.analyse(lambda run: next_token_response(name, run, body.text, body.number)))


@router.post("/caption", response_model=response_types.CaptionResponse, responses=STREAM_RESPONSES)
async def caption(body: request_types.CaptionRequest, request: Request) -> Response:
    """Caption an image, optionally with the attention of each word."""
    model_request: ModelRequest[CaptionRun] = ModelRequest.create(request, body.model, "caption", body.ablate)
    image = await model_request.read_image(body.image)
    return await respond_decoded(
        model_request,
        search_starts([partial(caption_task, model_request.run, image)], body),
        response_types.CaptionResponse,
        lambda run, found: [render.caption_result(run, image, several, body) for several in join_samples(found, body.samples)],
        stream=body.stream,
        analyse=body.attention,
        searches=True,
    )


@router.post("/fill", response_model=response_types.FillResponse)
async def fill(body: request_types.FillRequest, request: Request) -> Response:
    """Fill in masked words, written [MASK]."""
    model_request: ModelRequest[MaskedRun | SpanCorruptionRun] = ModelRequest.create(request, body.model, "fill", body.ablate)
    return await model_request.respond(
        response_types.FillResponse,
        lambda run: [
            response_types.FillResult(text=one.text, candidates=[render.label_probabilities(mask) for mask in one.candidates])
            for one in run.fill(as_list(body.text), number=body.number)
        ],
    )


@router.post("/classify", response_model=response_types.ClassifyResponse)
async def classify(body: request_types.ClassifyRequest, request: Request) -> Response:
    """Return every label of texts or an image, most probable first; or a regression's number."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "classify", body.ablate)
    inputs = await model_request.read_inputs(body.text, body.image)
    return await model_request.respond(
        response_types.ClassifyResponse, lambda run: render.classify_inputs(run, inputs, body.task)
    )


@router.post("/tag", response_model=response_types.TagResponse)
async def tag(body: request_types.TagRequest, request: Request) -> Response:
    """Label every word."""
    model_request: ModelRequest[TagRun] = ModelRequest.create(request, body.model, "tag", body.ablate)
    return await model_request.respond(
        response_types.TagResponse,
        lambda run: [response_types.TaggingResult(words=one.words, labels=one.labels) for one in run.tag(as_list(body.text))],
    )


@router.post("/answer", response_model=response_types.AnswerResponse)
async def answer(body: request_types.AnswerRequest, request: Request) -> Response:
    """Answer a question with a span of its context."""
    model_request: ModelRequest[AnswerRun] = ModelRequest.create(request, body.model, "answer", body.ablate)
    return await model_request.respond(
        response_types.AnswerResponse,
        lambda run: [
            response_types.AnswerSpanItem(text=span.text, start=span.start, end=span.end, probability=span.probability)
            for span in run.answer(body.question, body.context, number=body.top)
        ],
    )


@router.post("/embed", response_model=response_types.EmbedResponse)
async def embed(body: request_types.EmbedRequest, request: Request) -> Response:
    """Embed texts, each of their words, or an image."""
    model_request: ModelRequest[render.EmbeddingRun] = ModelRequest.create(request, body.model, "embed", body.ablate)
    inputs = await model_request.read_inputs(body.text, body.image)
    return await model_request.respond(
        response_types.EmbedResponse, lambda run: render.embed_inputs(run, inputs, body.layer, body.pool)
    )


@router.post("/match", response_model=response_types.MatchResponse)
async def match(body: request_types.MatchRequest, request: Request) -> Response:
    """Rank labels by how well they fit an image."""
    model_request: ModelRequest[ContrastiveRun] = ModelRequest.create(request, body.model, "match", body.ablate)
    image = await model_request.read_image(body.image)
    return await model_request.respond(
        response_types.MatchResponse,
        lambda run: render.label_probabilities(run.match([image], body.labels, body.templates)[0]),
    )


@router.post("/draw", response_model=response_types.DrawResponse)
async def draw(body: request_types.DrawRequest, request: Request) -> Response:
    """Generate images from a text."""
    model_request: ModelRequest[TextToImageRun] = ModelRequest.create(request, body.model, "draw", body.ablate)
    options = body.model_dump(include={"number", "temperature", "top_k", "top_p", "seed"})
    return await model_request.respond(
        response_types.DrawResponse,
        lambda run: [
            response_types.ImageResult(image=render.png_base64(one.image), score=one.score)
            for one in run.draw([body.text], **options)[0]
        ],
    )


@router.post("/attention", response_model=response_types.AttentionResponse, responses=FILE_RESPONSES)
async def attention(body: request_types.AttentionRequest, request: Request) -> Response:
    """Return the attention over a text or an image; with a translator or captioner, also that of its output."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "attention", body.ablate)
    name, given = model_request.model.name, await model_request.read_input(body.text, body.image)
    if body.format == "json":
        data = await model_request.analyse(lambda run: render.attention_json(name, run, given, body))
        return Response(data, media_type="application/json")
    data = await model_request.analyse(lambda run: render.attention_file(run, given, body))
    headers = {"Content-Disposition": f'attachment; filename="attention.{body.format}"'}
    return Response(data, media_type=FILE_TYPES[body.format], headers=headers)


@router.post("/explain", response_model=response_types.ExplainResponse)
async def explain(body: request_types.ExplainRequest, request: Request) -> Response:
    """Attribute an output to tokens or patches by several methods, and measure how faithful each method is."""
    model_request: ModelRequest[Run] = ModelRequest.create(request, body.model, "explain", body.ablate)
    name = model_request.model.name
    if body.text is not None and "image" in model_request.model.info.inputs:
        raise ApiError(422, f"{name}: only images are explained here; give image", code="invalid", param="text")
    given = await model_request.read_input(body.text, body.image)
    return json_response(await model_request.analyse(lambda run: render.explain_response(name, run, given, body)))
