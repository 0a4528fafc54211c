"""The endpoints under /v1 that do what runs do: one for each verb.

    GET  /v1/models                              -> response_types.Models
    POST /v1/translate    request_types.Translate     -> response_types.Translations   stream: true -> events, see below
    POST /v1/generate     request_types.Generate      -> response_types.Generated      stream: true -> events
    POST /v1/fill         request_types.Fill          -> response_types.Fills
    POST /v1/classify     request_types.Classify      -> response_types.Classes
    POST /v1/tag          request_types.Tag           -> response_types.Tags
    POST /v1/answer       request_types.Answer        -> response_types.Answers
    POST /v1/embed        request_types.Embed         -> response_types.Vectors
    POST /v1/caption      request_types.Caption       -> response_types.Captions       stream: true -> events
    POST /v1/match        request_types.Match         -> response_types.Matches
    POST /v1/draw         request_types.Draw          -> response_types.Drawings
    POST /v1/attention    request_types.Attention     -> response_types.Attention, or with form = attn, svg or png the file itself
    POST /v1/explain      request_types.Explain       -> response_types.Explained

Everything that is no success is response_types.Wrong: {"error": {"message", "type", "param", "code"}}.

A stream is text/event-stream of lines `data: JSON`: one response_types.Piece per token; then response_types.Event, whose `done`
is what the endpoint answers without stream (with `looks` in it where they were asked for); then `data: [DONE]`. What goes wrong
after the first event is an event {"error": {...}}, and then [DONE].

The page is `page/index.html` at /, and what lies beside it at /page/NAME.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from PIL import Image

from regard.server import render, request_types, response_types
from regard.server.errors import ApiError
from regard.server.jobs import Pieces, stream_events, wait_for_results
from regard.server.limits import client_address
from regard.server.models import ServedModel
from regard.server.worker import Job, OnToken
from regard.tasks.shared.images import image_from_bytes
from regard.tasks.shared.requests import DecodingTask, SamplingParams, StreamedToken, caption_task, generate_task, translate_task

router = APIRouter(prefix="/v1")
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": response_types.ErrorResponse, "description": about}
    for status, about in (
        (400, "no JSON"),
        (401, "no token"),
        (403, "another site's page"),
        (404, "no such model"),
        (408, "came too slowly"),
        (413, "too large"),
        (415, "not declared as JSON"),
        (421, "another Host"),
        (422, "does not fit, or the model refuses it"),
        (429, "too many of one client's texts are waiting"),
        (500, "the server's own fault"),
        (503, "too many are waiting, it took too long, or the server is stopping"),
    )
}
EVENT_SCHEMA = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}}
FILE_TYPES = {"attn": "application/octet-stream", "svg": "image/svg+xml", "png": "image/png"}
FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in FILE_TYPES.values()}}
}
SEARCH_OPTIONS = {"beam", "length_penalty", "max_tokens", "number", "temperature", "top_k", "top_p", "seed"}
DIGITS = 6


@dataclass(frozen=True)
class ModelRequest:
    """A request on its way to a model."""

    request: Request
    served: ServedModel

    @staticmethod
    def of(request: Request, model: str | None, verb: str) -> "ModelRequest":
        served = request.app.state.models.find(model, verb)
        request.scope["model"] = served.name
        return ModelRequest(request, served)

    @property
    def client(self) -> str:
        return client_address(self.request.scope)

    @property
    def seconds(self) -> float:
        return self.request.app.state.settings.deadline

    async def of_model(self, work: Callable[[Any], Any]) -> Any:
        """What is made of the run, or its twin."""
        ticket = Job(lambda tell: work(self.served.twin), client=self.client)
        (found,) = await wait_for_results(self.request, self.served.looker, [ticket], self.seconds)
        return found

    async def written(self, begin: Sequence[Callable[[OnToken], DecodingTask]]) -> list[Any]:
        """Texts that the model writes together with others'."""
        tickets = [Job(one, client=self.client, decodes=True, index=index) for index, one in enumerate(begin)]
        return await wait_for_results(self.request, self.served.worker, tickets, self.seconds)

    async def events(
        self,
        begin: Sequence[Callable[[OnToken], DecodingTask]],
        event: Callable[[int, StreamedToken], Any],
        last: Callable[[list[Any]], Any],
        ended: Callable[[int, Any], Any] = lambda index, result: None,
    ) -> Response:
        """The same as a stream."""
        pieces: Pieces = Pieces()
        tickets = [Job(one, client=self.client, decodes=True, index=index, pieces=pieces) for index, one in enumerate(begin)]
        return await stream_events(self.request, self.served.worker, tickets, pieces, self.seconds, event, last, ended)

    async def picture(self, given: str) -> Image.Image:
        """In a thread, for it takes a while; and not read before its size is known to be reasonable."""
        data = given.partition(",")[2] if given.startswith("data:") else given
        try:
            return await asyncio.to_thread(
                lambda: image_from_bytes(
                    base64.b64decode(data, validate=True), "the picture", self.request.app.state.settings.pixels
                )
            )
        except ValueError:
            raise ApiError(422, "image: should be a picture in base64, or a data: URL", code="invalid", param="image") from None

    async def given(self, text: str | None, image: str | None) -> Any:
        """A text or a picture, whichever the model reads."""
        side = "text" if image is None else "image"
        if side not in self.served.reads:
            raise ApiError(
                422,
                f"{self.served.name} reads {' and '.join(self.served.reads)}: give {self.served.reads[0]}",
                code="invalid",
                param=side,
            )
        return render.mark_as_text(self.served.run, text or "") if image is None else await self.picture(image)

    async def all_given(self, texts: str | list[str] | None, image: str | None) -> list[Any]:
        return [await self.given(None, image)] if texts is None else [await self.given(text, None) for text in as_list(texts)]


def json_response(answer: Any) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def as_list(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


def token_event(index: int, piece: StreamedToken) -> response_types.TokenEvent:
    return response_types.TokenEvent(
        index=index, piece=piece.text, token=piece.word, probability=round(piece.probability, DIGITS)
    )


def stream_response(
    asked: Any,
    begin: Sequence[Callable[[OnToken], DecodingTask]],
    asking: ModelRequest,
    last: Callable[[list[Any]], Any],
    text_of: Callable[[Any], str],
) -> Any:
    """A stream of pieces; where a search keeps several hypotheses nothing is certain before its end, and a text is one piece."""
    heard: set[int] = set()

    def event(index: int, piece: StreamedToken) -> response_types.TokenEvent:
        heard.add(index)
        return token_event(index, piece)

    def ended(index: int, result: Any) -> response_types.TokenEvent | None:
        return (
            None if index in heard else response_types.TokenEvent(index=index, piece=text_of(result), token="", probability=1.0)
        )

    async def done(results: list[Any]) -> response_types.DoneEvent:
        return response_types.DoneEvent(done=(await last(results)).model_dump())

    return asking.events(begin, event, done, ended)


@router.get("/models", response_model=response_types.ModelsResponse)
async def models(request: Request) -> response_types.ModelsResponse:
    """All models, and what each can do."""
    return response_types.ModelsResponse(data=[served.about for served in request.app.state.models.models.values()])


@router.get("/models/{name}", response_model=response_types.ModelInfo)
async def model(name: str, request: Request) -> response_types.ModelInfo:
    found = request.app.state.models.models.get(name)
    if found is None:
        raise ApiError(404, "there is no such model", code="model_not_found", param="model")
    return found.about


@router.post("/translate", response_model=response_types.TranslateResponse, responses=STREAM_RESPONSES)
async def translate(asked: request_types.TranslateRequest, request: Request) -> Response:
    """Translate texts; a run of several tasks does with them what `task` says."""
    asking = ModelRequest.of(request, asked.model, "translate")
    run, texts = asking.served.run, as_list(asked.text)
    texts = render.add_task_prefix(run, texts, asked.task)
    options = asked.model_dump(include=SEARCH_OPTIONS)
    places = render.indices_of_nonempty(texts)

    def begin(index: int, text: str) -> Callable[[OnToken], DecodingTask]:
        return lambda tell: translate_task(run, text, place=places[index], tell=tell if asked.stream else None, **options)

    async def whole(found: list[Any]) -> response_types.TranslateResponse:
        more = (
            await asking.of_model(lambda run: render.translation_views(run, texts, found, asked))
            if asked.align or asked.tree
            else [{} for _ in texts]
        )
        return response_types.TranslateResponse(
            model=asking.served.name, results=[render.translation_result(run, best, extra) for best, extra in zip(found, more)]
        )

    begun = [begin(index, text) for index, text in enumerate(texts)]
    if asked.stream:
        return await stream_response(asked, begun, asking, whole, lambda found: found[0].text)
    return json_response(await whole(await asking.written(begun)))


@router.post("/generate", response_model=response_types.GenerateResponse, responses=STREAM_RESPONSES)
async def generate(asked: request_types.GenerateRequest, request: Request) -> Response:
    """Write on from prompts."""
    asking = ModelRequest.of(request, asked.model, "generate")
    run, prompts = asking.served.run, as_list(asked.prompt)
    if len(prompts) * asked.number > request_types.MAX_TEXTS:
        raise ApiError(
            422,
            f"number: {len(prompts)} prompts times {asked.number} are more than {request_types.MAX_TEXTS} texts",
            code="invalid",
            param="number",
        )
    manner = SamplingParams(
        asked.max_tokens,
        asked.temperature,
        asked.top_k,
        asked.top_p,
        asked.repetition_penalty,
        tuple(asked.stop),
        asked.seed,
        asked.number,
    )
    rows = [(place, prompt, sample) for place, prompt in enumerate(prompts) for sample in range(asked.number)]

    def begin(place: int, prompt: str, sample: int) -> Callable[[OnToken], DecodingTask]:
        return lambda tell: generate_task(run, prompt, manner, place=place, sample=sample, tell=tell if asked.stream else None)

    async def whole(found: list[Any]) -> response_types.GenerateResponse:
        looks = (
            await asking.of_model(lambda run: render.generation_attentions(run, [prompt for _, prompt, _ in rows], found, asked))
            if asked.looks
            else [None] * len(found)
        )
        return response_types.GenerateResponse(
            model=asking.served.name, results=[render.generation_result(one, seen) for one, seen in zip(found, looks)]
        )

    begun = [begin(*row) for row in rows]
    if asked.stream:

        async def done(found: list[Any]) -> response_types.DoneEvent:
            return response_types.DoneEvent(done=(await whole(found)).model_dump())

        return await asking.events(begun, token_event, done)
    return json_response(await whole(await asking.written(begun)))


@router.post("/caption", response_model=response_types.CaptionResponse, responses=STREAM_RESPONSES)
async def caption(asked: request_types.CaptionRequest, request: Request) -> Response:
    """Say in words what a picture shows, and where each word looked."""
    asking = ModelRequest.of(request, asked.model, "caption")
    run, picture = asking.served.run, await asking.picture(asked.image)
    options = asked.model_dump(include=SEARCH_OPTIONS)

    async def whole(found: list[Any]) -> response_types.CaptionResponse:
        looks = await asking.of_model(lambda run: render.caption_attention(run, picture, found[0][0])) if asked.looks else None
        return response_types.CaptionResponse(model=asking.served.name, results=[render.caption_result(run, found[0], looks)])

    begun = [lambda tell: caption_task(run, picture, tell=tell if asked.stream else None, **options)]
    if asked.stream:
        return await stream_response(asked, begun, asking, whole, lambda found: found[0].text)
    return json_response(await whole(await asking.written(begun)))


@router.post("/fill", response_model=response_types.FillResponse)
async def fill(asked: request_types.FillRequest, request: Request) -> Response:
    """Fill in masked words, written [MASK]."""
    asking = ModelRequest.of(request, asked.model, "fill")
    found = await asking.of_model(lambda run: run.fill(as_list(asked.text), number=asked.number))
    return json_response(
        response_types.FillResponse(
            model=asking.served.name,
            results=[
                response_types.FillResult(
                    text=one.text, candidates=[render.label_probabilities(place) for place in one.candidates]
                )
                for one in found
            ],
        )
    )


@router.post("/classify", response_model=response_types.ClassifyResponse)
async def classify(asked: request_types.ClassifyRequest, request: Request) -> Response:
    """Every label of texts or of a picture, the most probable first; or a number."""
    asking = ModelRequest.of(request, asked.model, "classify")
    given = await asking.all_given(asked.text, asked.image)
    found = await asking.of_model(lambda run: render.classify_inputs(run, given, asked.task))
    return json_response(
        response_types.ClassifyResponse(
            model=asking.served.name,
            results=[
                response_types.ClassificationResult(labels=[], score=one)
                if isinstance(one, float)
                else response_types.ClassificationResult(labels=render.label_probabilities(one))
                for one in found
            ],
        )
    )


@router.post("/tag", response_model=response_types.TagResponse)
async def tag(asked: request_types.TagRequest, request: Request) -> Response:
    """A label of every word."""
    asking = ModelRequest.of(request, asked.model, "tag")
    found = await asking.of_model(lambda run: run.tag(as_list(asked.text)))
    return json_response(
        response_types.TagResponse(
            model=asking.served.name, results=[response_types.TaggingResult(words=one.words, labels=one.labels) for one in found]
        )
    )


@router.post("/answer", response_model=response_types.AnswerResponse)
async def answer(asked: request_types.AnswerRequest, request: Request) -> Response:
    """Answer a question with words of its context."""
    asking = ModelRequest.of(request, asked.model, "answer")
    (found,) = await asking.of_model(lambda run: run.answers([asked.question], [asked.context], top=asked.top))
    return json_response(
        response_types.AnswerResponse(
            model=asking.served.name,
            results=[
                response_types.AnswerSpanItem(text=one.text, start=one.start, end=one.end, probability=one.probability)
                for one in found
            ],
        )
    )


@router.post("/embed", response_model=response_types.EmbedResponse)
async def embed(asked: request_types.EmbedRequest, request: Request) -> Response:
    """The vectors of texts, of each word in them, or of a picture."""
    asking = ModelRequest.of(request, asked.model, "embed")
    given = await asking.all_given(asked.text, asked.image)
    found = await asking.of_model(lambda run: render.embed_inputs(run, given, asked.layer, asked.pool))
    return json_response(response_types.EmbedResponse(model=asking.served.name, results=found))


@router.post("/match", response_model=response_types.MatchResponse)
async def match(asked: request_types.MatchRequest, request: Request) -> Response:
    """Which of some labels fits a picture best."""
    asking = ModelRequest.of(request, asked.model, "match")
    picture = await asking.picture(asked.image)
    (found,) = await asking.of_model(lambda run: run.match([picture], asked.labels, asked.templates))
    return json_response(response_types.MatchResponse(model=asking.served.name, results=render.label_probabilities(found)))


@router.post("/draw", response_model=response_types.DrawResponse)
async def draw(asked: request_types.DrawRequest, request: Request) -> Response:
    """Draw pictures of a text."""
    asking = ModelRequest.of(request, asked.model, "draw")
    (found,) = await asking.of_model(
        lambda run: run.draw(
            [asked.text],
            number=asked.number,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            seed=asked.seed,
        )
    )
    return json_response(
        response_types.DrawResponse(
            model=asking.served.name,
            results=[response_types.ImageResult(picture=render.png_base64(one.picture), score=one.score) for one in found],
        )
    )


@router.post("/attention", response_model=response_types.AttentionResponse, responses=FILE_RESPONSES)
async def attention(asked: request_types.AttentionRequest, request: Request) -> Response:
    """What the model looks at when it reads a text or a picture, and with a translator or captioner what it says of it."""
    asking = ModelRequest.of(request, asked.model, "attention")
    given = await asking.given(asked.text, asked.image)
    if asked.form == "json":
        return Response(
            await asking.of_model(lambda run: render.attention_json(asking.served.name, run, given, asked)),
            media_type="application/json",
        )
    data = await asking.of_model(lambda run: render.attention_file(run, given, asked))
    return Response(
        data, media_type=FILE_TYPES[asked.form], headers={"Content-Disposition": f'attachment; filename="attention.{asked.form}"'}
    )


@router.post("/explain", response_model=response_types.ExplainResponse)
async def explain(asked: request_types.ExplainRequest, request: Request) -> Response:
    """What each token or patch has to do with an answer, by several methods, and how far each can be trusted."""
    asking = ModelRequest.of(request, asked.model, "explain")
    if asked.text is not None and "image" in asking.served.reads:
        raise ApiError(
            422, f"{asking.served.name}: what is explained here are pictures; give image", code="invalid", param="text"
        )
    given = await asking.given(asked.text, asked.image)
    return json_response(await asking.of_model(lambda run: render.explain_response(asking.served.name, run, given, asked)))
