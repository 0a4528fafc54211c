"""The endpoints under /v1, one for each verb of a run.

    GET  /v1/models                          -> ModelsResponse
    POST /v1/translate    TranslateRequest   -> TranslateResponse    stream: true -> events, see below
    POST /v1/generate     GenerateRequest    -> GenerateResponse     stream: true -> events
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

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.server import render, request_types, response_types
from regard.server.errors import ApiError
from regard.server.jobs import ModelRequest, StartDecoding, as_list, json_response
from regard.tasks.caption import CaptionRun
from regard.tasks.language import LanguageRun
from regard.tasks.shared.requests import SamplingParams, StreamedToken, caption_task, generate_task, translate_task
from regard.tasks.translate import TranslateRun

router = APIRouter(prefix="/v1")
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


async def stream_response(
    model_request: ModelRequest,
    starts: Sequence[StartDecoding],
    build_response: Callable[[list[Any]], Awaitable[response_types.ApiResponse]],
    result_text: Callable[[Any], str] | None = None,
) -> Response:
    """Stream tokens, then the complete response. A beam search has no certain token before its end: with `result_text`, a text
    without token events is sent as one event when it ends."""
    seen: set[int] = set()

    def token_event(index: int, token: StreamedToken) -> response_types.TokenEvent:
        seen.add(index)
        probability = round(token.probability, render.DIGITS)
        return response_types.TokenEvent(index=index, text=token.text, token=token.word, probability=probability)

    def end_event(index: int, result: Any) -> response_types.TokenEvent | None:
        if result_text is None or index in seen:
            return None
        return response_types.TokenEvent(index=index, text=result_text(result), token="", probability=1.0)

    async def done_event(results: list[Any]) -> response_types.DoneEvent:
        return response_types.DoneEvent(done=(await build_response(results)).model_dump())

    return await model_request.stream(starts, token_event, done_event, end_event)


@router.get("/models", response_model=response_types.ModelsResponse)
async def models(request: Request) -> response_types.ModelsResponse:
    """List all models and what each can do."""
    return response_types.ModelsResponse(data=[model.info for model in request.app.state.models.by_name.values()])


@router.get("/models/{name}", response_model=response_types.ModelInfo)
async def model(name: str, request: Request) -> response_types.ModelInfo:
    found = request.app.state.models.by_name.get(name)
    if found is None:
        raise ApiError(404, "there is no such model", code="model_not_found", param="model")
    return found.info


@router.post("/translate", response_model=response_types.TranslateResponse, responses=STREAM_RESPONSES)
async def translate(body: request_types.TranslateRequest, request: Request) -> Response:
    """Translate texts; a run of several tasks does the one named by `task`."""
    model_request = ModelRequest.create(request, body.model, "translate")
    run = cast(TranslateRun, model_request.model.run)
    texts = render.add_task_prefix(run, as_list(body.text), body.task)
    options = body.model_dump(include=SEARCH_OPTIONS)
    places = render.indices_of_nonempty(texts)

    def start(index: int, text: str) -> StartDecoding:
        return lambda on_token: translate_task(
            run, text, place=places[index], callback=on_token if body.stream else None, **options
        )

    async def build_response(results: list[Any]) -> response_types.TranslateResponse:
        views: list[dict[str, Any]] = [{} for _ in texts]
        if body.alignment or body.beam_tree:
            views = await model_request.analyse(lambda run: render.translation_views(run, texts, results, body))
        translations = [render.translation_result(run, hypotheses, view) for hypotheses, view in zip(results, views)]
        return response_types.TranslateResponse(model=model_request.model.name, results=translations)

    starts = [start(index, text) for index, text in enumerate(texts)]
    if body.stream:
        return await stream_response(model_request, starts, build_response, lambda hypotheses: hypotheses[0].text)
    return json_response(await build_response(await model_request.decode(starts)))


@router.post("/generate", response_model=response_types.GenerateResponse, responses=STREAM_RESPONSES)
async def generate(body: request_types.GenerateRequest, request: Request) -> Response:
    """Continue prompts."""
    model_request = ModelRequest.create(request, body.model, "generate")
    run, prompts = cast(LanguageRun, model_request.model.run), as_list(body.prompt)
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
    rows = [(place, prompt, sample) for place, prompt in enumerate(prompts) for sample in range(body.number)]

    def start(place: int, prompt: str, sample: int) -> StartDecoding:
        return lambda on_token: generate_task(
            run, prompt, params, place=place, sample=sample, callback=on_token if body.stream else None
        )

    async def build_response(results: list[Any]) -> response_types.GenerateResponse:
        attentions: list[response_types.GenerationAttention | None] = [None] * len(results)
        if body.attention:
            repeated = [prompt for _, prompt, _ in rows]
            attentions = await model_request.analyse(lambda run: render.generation_attentions(run, repeated, results, body))
        generations = [render.generation_result(result, attention) for result, attention in zip(results, attentions)]
        return response_types.GenerateResponse(model=model_request.model.name, results=generations)

    starts = [start(*row) for row in rows]
    if body.stream:
        return await stream_response(model_request, starts, build_response)
    return json_response(await build_response(await model_request.decode(starts)))


@router.post("/caption", response_model=response_types.CaptionResponse, responses=STREAM_RESPONSES)
async def caption(body: request_types.CaptionRequest, request: Request) -> Response:
    """Caption an image, optionally with the attention of each word."""
    model_request = ModelRequest.create(request, body.model, "caption")
    run, image = cast(CaptionRun, model_request.model.run), await model_request.read_image(body.image)
    options = body.model_dump(include=SEARCH_OPTIONS)

    async def build_response(results: list[Any]) -> response_types.CaptionResponse:
        hypotheses, attention = results[0], None
        if body.attention:
            attention = await model_request.analyse(lambda run: render.caption_attention(run, image, hypotheses[0]))
        captions = [render.caption_result(run, hypotheses, attention)]
        return response_types.CaptionResponse(model=model_request.model.name, results=captions)

    starts: list[StartDecoding] = [
        lambda on_token: caption_task(run, image, callback=on_token if body.stream else None, **options)
    ]
    if body.stream:
        return await stream_response(model_request, starts, build_response, lambda hypotheses: hypotheses[0].text)
    return json_response(await build_response(await model_request.decode(starts)))


@router.post("/fill", response_model=response_types.FillResponse)
async def fill(body: request_types.FillRequest, request: Request) -> Response:
    """Fill in masked words, written [MASK]."""
    model_request = ModelRequest.create(request, body.model, "fill")
    filled = await model_request.analyse(lambda run: run.fill(as_list(body.text), number=body.number))
    results = [
        response_types.FillResult(text=one.text, candidates=[render.label_probabilities(mask) for mask in one.candidates])
        for one in filled
    ]
    return json_response(response_types.FillResponse(model=model_request.model.name, results=results))


@router.post("/classify", response_model=response_types.ClassifyResponse)
async def classify(body: request_types.ClassifyRequest, request: Request) -> Response:
    """Return every label of texts or an image, most probable first; or a regression's number."""
    model_request = ModelRequest.create(request, body.model, "classify")
    inputs = await model_request.read_inputs(body.text, body.image)
    predictions = await model_request.analyse(lambda run: render.classify_inputs(run, inputs, body.task))
    results = [
        response_types.ClassificationResult(labels=[], score=one)
        if isinstance(one, float)
        else response_types.ClassificationResult(labels=render.label_probabilities(one))
        for one in predictions
    ]
    return json_response(response_types.ClassifyResponse(model=model_request.model.name, results=results))


@router.post("/tag", response_model=response_types.TagResponse)
async def tag(body: request_types.TagRequest, request: Request) -> Response:
    """Label every word."""
    model_request = ModelRequest.create(request, body.model, "tag")
    tagged = await model_request.analyse(lambda run: run.tag(as_list(body.text)))
    results = [response_types.TaggingResult(words=one.words, labels=one.labels) for one in tagged]
    return json_response(response_types.TagResponse(model=model_request.model.name, results=results))


@router.post("/answer", response_model=response_types.AnswerResponse)
async def answer(body: request_types.AnswerRequest, request: Request) -> Response:
    """Answer a question with a span of its context."""
    model_request = ModelRequest.create(request, body.model, "answer")
    (spans,) = await model_request.analyse(lambda run: run.answers([body.question], [body.context], top=body.top))
    results = [
        response_types.AnswerSpanItem(text=span.text, start=span.start, end=span.end, probability=span.probability)
        for span in spans
    ]
    return json_response(response_types.AnswerResponse(model=model_request.model.name, results=results))


@router.post("/embed", response_model=response_types.EmbedResponse)
async def embed(body: request_types.EmbedRequest, request: Request) -> Response:
    """Embed texts, each of their words, or an image."""
    model_request = ModelRequest.create(request, body.model, "embed")
    inputs = await model_request.read_inputs(body.text, body.image)
    results = await model_request.analyse(lambda run: render.embed_inputs(run, inputs, body.layer, body.pool))
    return json_response(response_types.EmbedResponse(model=model_request.model.name, results=results))


@router.post("/match", response_model=response_types.MatchResponse)
async def match(body: request_types.MatchRequest, request: Request) -> Response:
    """Rank labels by how well they fit an image."""
    model_request = ModelRequest.create(request, body.model, "match")
    image = await model_request.read_image(body.image)
    (ranked,) = await model_request.analyse(lambda run: run.match([image], body.labels, body.templates))
    results = render.label_probabilities(ranked)
    return json_response(response_types.MatchResponse(model=model_request.model.name, results=results))


@router.post("/draw", response_model=response_types.DrawResponse)
async def draw(body: request_types.DrawRequest, request: Request) -> Response:
    """Generate images from a text."""
    model_request = ModelRequest.create(request, body.model, "draw")
    options = body.model_dump(include={"number", "temperature", "top_k", "top_p", "seed"})
    (images,) = await model_request.analyse(lambda run: run.draw([body.text], **options))
    results = [response_types.ImageResult(image=render.png_base64(one.image), score=one.score) for one in images]
    return json_response(response_types.DrawResponse(model=model_request.model.name, results=results))


@router.post("/attention", response_model=response_types.AttentionResponse, responses=FILE_RESPONSES)
async def attention(body: request_types.AttentionRequest, request: Request) -> Response:
    """Return the attention over a text or an image; with a translator or captioner, also that of its output."""
    model_request = ModelRequest.create(request, body.model, "attention")
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
    model_request = ModelRequest.create(request, body.model, "explain")
    name = model_request.model.name
    if body.text is not None and "image" in model_request.model.inputs:
        raise ApiError(422, f"{name}: only images are explained here; give image", code="invalid", param="text")
    given = await model_request.read_input(body.text, body.image)
    return json_response(await model_request.analyse(lambda run: render.explain_response(name, run, given, body)))
