"""The endpoints under /v1 that do what runs do: one for each verb.

    GET  /v1/models                              -> responses.Models
    POST /v1/translate    requests.Translate     -> responses.Translations   stream: true -> events, see below
    POST /v1/generate     requests.Generate      -> responses.Generated      stream: true -> events
    POST /v1/fill         requests.Fill          -> responses.Fills
    POST /v1/classify     requests.Classify      -> responses.Classes
    POST /v1/tag          requests.Tag           -> responses.Tags
    POST /v1/answer       requests.Answer        -> responses.Answers
    POST /v1/embed        requests.Embed         -> responses.Vectors
    POST /v1/caption      requests.Caption       -> responses.Captions       stream: true -> events
    POST /v1/match        requests.Match         -> responses.Matches
    POST /v1/draw         requests.Draw          -> responses.Drawings
    POST /v1/attention    requests.Attention     -> responses.Attention, or with form = attn, svg or png the file itself
    POST /v1/explain      requests.Explain       -> responses.Explained

Everything that is no success is responses.Wrong: {"error": {"message", "type", "param", "code"}}.

A stream is text/event-stream of lines `data: JSON`: one responses.Piece per token, in order; then responses.Event, whose `done`
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

from regard.server import render, requests, responses
from regard.server.errors import Refused
from regard.server.limits import client_of
from regard.server.models import Served
from regard.server.tickets import Pieces, answered, streamed
from regard.server.worker import Tell, Ticket
from regard.tasks.images import picture_of
from regard.tasks.streaming import Manner, Piece, Task, captioning, translating, writing

router = APIRouter(prefix="/v1")
WRONG: dict[int | str, dict[str, Any]] = {
    status: {"model": responses.Wrong, "description": about}
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
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}
FORMS = {"attn": "application/octet-stream", "svg": "image/svg+xml", "png": "image/png"}
FILES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in FORMS.values()}}
}
SEARCH = {"beam", "length_penalty", "max_tokens", "number", "temperature", "top_k", "top_p", "seed"}
DIGITS = 6


@dataclass(frozen=True)
class Asking:
    """A request on its way to a model."""

    request: Request
    served: Served

    @staticmethod
    def of(request: Request, model: str | None, verb: str) -> "Asking":
        served = request.app.state.shelf.find(model, verb)
        request.scope["model"] = served.name
        return Asking(request, served)

    @property
    def client(self) -> str:
        return client_of(self.request.scope)

    @property
    def seconds(self) -> float:
        return self.request.app.state.settings.deadline

    async def of_model(self, work: Callable[[Any], Any]) -> Any:
        """What is made of the run, or its twin."""
        ticket = Ticket(lambda tell: work(self.served.twin), client=self.client)
        (found,) = await answered(self.request, self.served.looker, [ticket], self.seconds)
        return found

    async def written(self, begin: Sequence[Callable[[Tell], Task]]) -> list[Any]:
        """Texts that the model writes together with others'."""
        tickets = [Ticket(one, client=self.client, decodes=True, index=index) for index, one in enumerate(begin)]
        return await answered(self.request, self.served.worker, tickets, self.seconds)

    async def events(
        self,
        begin: Sequence[Callable[[Tell], Task]],
        event: Callable[[int, Piece], Any],
        last: Callable[[list[Any]], Any],
        ended: Callable[[int, Any], Any] = lambda index, result: None,
    ) -> Response:
        """The same as a stream."""
        pieces: Pieces = Pieces()
        tickets = [Ticket(one, client=self.client, decodes=True, index=index, pieces=pieces) for index, one in enumerate(begin)]
        return await streamed(self.request, self.served.worker, tickets, pieces, self.seconds, event, last, ended)

    async def picture(self, given: str) -> Image.Image:
        """In a thread, for it takes a while; and not read before its size is known to be reasonable."""
        data = given.partition(",")[2] if given.startswith("data:") else given
        try:
            return await asyncio.to_thread(
                lambda: picture_of(base64.b64decode(data, validate=True), "the picture", self.request.app.state.settings.pixels)
            )
        except ValueError:
            raise Refused(422, "image: should be a picture in base64, or a data: URL", code="invalid", param="image") from None

    async def given(self, text: str | None, image: str | None) -> Any:
        """A text or a picture, whichever the model reads."""
        side = "text" if image is None else "image"
        if side not in self.served.reads:
            raise Refused(
                422,
                f"{self.served.name} reads {' and '.join(self.served.reads)}: give {self.served.reads[0]}",
                code="invalid",
                param=side,
            )
        return render.as_text(self.served.run, text or "") if image is None else await self.picture(image)

    async def all_given(self, texts: str | list[str] | None, image: str | None) -> list[Any]:
        return [await self.given(None, image)] if texts is None else [await self.given(text, None) for text in listed(texts)]


def sent(answer: Any) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def listed(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


def piece_event(index: int, piece: Piece) -> responses.Piece:
    return responses.Piece(index=index, piece=piece.text, token=piece.word, probability=round(piece.probability, DIGITS))


def at_end(
    asked: Any,
    begin: Sequence[Callable[[Tell], Task]],
    asking: Asking,
    last: Callable[[list[Any]], Any],
    text_of: Callable[[Any], str],
) -> Any:
    """A stream of pieces; where a search keeps several hypotheses nothing is certain before its end, and a text is one piece."""
    heard: set[int] = set()

    def event(index: int, piece: Piece) -> responses.Piece:
        heard.add(index)
        return piece_event(index, piece)

    def ended(index: int, result: Any) -> responses.Piece | None:
        return None if index in heard else responses.Piece(index=index, piece=text_of(result), token="", probability=1.0)

    async def done(results: list[Any]) -> responses.Event:
        return responses.Event(done=(await last(results)).model_dump())

    return asking.events(begin, event, done, ended)


@router.get("/models", response_model=responses.Models)
async def models(request: Request) -> responses.Models:
    """All models, and what each can do."""
    return responses.Models(data=[served.about for served in request.app.state.shelf.models.values()])


@router.get("/models/{name}", response_model=responses.Model)
async def model(name: str, request: Request) -> responses.Model:
    found = request.app.state.shelf.models.get(name)
    if found is None:
        raise Refused(404, "there is no such model", code="model_not_found", param="model")
    return found.about


@router.post("/translate", response_model=responses.Translations, responses=STREAM)
async def translate(asked: requests.Translate, request: Request) -> Response:
    """Translate texts; a run of several tasks does with them what `task` says."""
    asking = Asking.of(request, asked.model, "translate")
    run, texts = asking.served.run, listed(asked.text)
    texts = render.prefixed(run, texts, asked.task)
    options = asked.model_dump(include=SEARCH)
    places = render.places_of_spoken(texts)

    def begin(index: int, text: str) -> Callable[[Tell], Task]:
        return lambda tell: translating(run, text, place=places[index], tell=tell if asked.stream else None, **options)

    async def whole(found: list[Any]) -> responses.Translations:
        more = (
            await asking.of_model(lambda run: render.seen_of_translations(run, texts, found, asked))
            if asked.align or asked.tree
            else [{} for _ in texts]
        )
        return responses.Translations(
            model=asking.served.name, results=[render.translation(run, best, extra) for best, extra in zip(found, more)]
        )

    begun = [begin(index, text) for index, text in enumerate(texts)]
    if asked.stream:
        return await at_end(asked, begun, asking, whole, lambda found: found[0].text)
    return sent(await whole(await asking.written(begun)))


@router.post("/generate", response_model=responses.Generated, responses=STREAM)
async def generate(asked: requests.Generate, request: Request) -> Response:
    """Write on from prompts."""
    asking = Asking.of(request, asked.model, "generate")
    run, prompts = asking.served.run, listed(asked.prompt)
    if len(prompts) * asked.number > requests.MOST_TEXTS:
        raise Refused(
            422,
            f"number: {len(prompts)} prompts times {asked.number} are more than {requests.MOST_TEXTS} texts",
            code="invalid",
            param="number",
        )
    manner = Manner(
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

    def begin(place: int, prompt: str, sample: int) -> Callable[[Tell], Task]:
        return lambda tell: writing(run, prompt, manner, place=place, sample=sample, tell=tell if asked.stream else None)

    async def whole(found: list[Any]) -> responses.Generated:
        looks = (
            await asking.of_model(lambda run: render.looks_of_texts(run, [prompt for _, prompt, _ in rows], found, asked))
            if asked.looks
            else [None] * len(found)
        )
        return responses.Generated(
            model=asking.served.name, results=[render.written(one, seen) for one, seen in zip(found, looks)]
        )

    begun = [begin(*row) for row in rows]
    if asked.stream:

        async def done(found: list[Any]) -> responses.Event:
            return responses.Event(done=(await whole(found)).model_dump())

        return await asking.events(begun, piece_event, done)
    return sent(await whole(await asking.written(begun)))


@router.post("/caption", response_model=responses.Captions, responses=STREAM)
async def caption(asked: requests.Caption, request: Request) -> Response:
    """Say in words what a picture shows, and where each word looked."""
    asking = Asking.of(request, asked.model, "caption")
    run, picture = asking.served.run, await asking.picture(asked.image)
    options = asked.model_dump(include=SEARCH)

    async def whole(found: list[Any]) -> responses.Captions:
        looks = await asking.of_model(lambda run: render.looks_of_caption(run, picture, found[0][0])) if asked.looks else None
        return responses.Captions(model=asking.served.name, results=[render.captioned(run, found[0], looks)])

    begun = [lambda tell: captioning(run, picture, tell=tell if asked.stream else None, **options)]
    if asked.stream:
        return await at_end(asked, begun, asking, whole, lambda found: found[0].text)
    return sent(await whole(await asking.written(begun)))


@router.post("/fill", response_model=responses.Fills)
async def fill(asked: requests.Fill, request: Request) -> Response:
    """Fill in masked words, written [MASK]."""
    asking = Asking.of(request, asked.model, "fill")
    found = await asking.of_model(lambda run: run.fill(listed(asked.text), number=asked.number))
    return sent(
        responses.Fills(
            model=asking.served.name,
            results=[
                responses.Filled(text=one.text, candidates=[render.judgements(place) for place in one.candidates])
                for one in found
            ],
        )
    )


@router.post("/classify", response_model=responses.Classes)
async def classify(asked: requests.Classify, request: Request) -> Response:
    """Every label of texts or of a picture, the most probable first; or a number."""
    asking = Asking.of(request, asked.model, "classify")
    given = await asking.all_given(asked.text, asked.image)
    found = await asking.of_model(lambda run: render.classified(run, given, asked.task))
    return sent(
        responses.Classes(
            model=asking.served.name,
            results=[
                responses.Classified(labels=[], score=one)
                if isinstance(one, float)
                else responses.Classified(labels=render.judgements(one))
                for one in found
            ],
        )
    )


@router.post("/tag", response_model=responses.Tags)
async def tag(asked: requests.Tag, request: Request) -> Response:
    """A label of every word."""
    asking = Asking.of(request, asked.model, "tag")
    found = await asking.of_model(lambda run: run.tag(listed(asked.text)))
    return sent(
        responses.Tags(model=asking.served.name, results=[responses.Tagged(words=one.words, labels=one.labels) for one in found])
    )


@router.post("/answer", response_model=responses.Answers)
async def answer(asked: requests.Answer, request: Request) -> Response:
    """Answer a question with words of its context."""
    asking = Asking.of(request, asked.model, "answer")
    (found,) = await asking.of_model(lambda run: run.answers([asked.question], [asked.context], top=asked.top))
    return sent(
        responses.Answers(
            model=asking.served.name,
            results=[responses.Span(text=one.text, start=one.start, end=one.end, probability=one.probability) for one in found],
        )
    )


@router.post("/embed", response_model=responses.Vectors)
async def embed(asked: requests.Embed, request: Request) -> Response:
    """The vectors of texts, of each word in them, or of a picture."""
    asking = Asking.of(request, asked.model, "embed")
    given = await asking.all_given(asked.text, asked.image)
    found = await asking.of_model(lambda run: render.embedded(run, given, asked.layer, asked.pool))
    return sent(responses.Vectors(model=asking.served.name, results=found))


@router.post("/match", response_model=responses.Matches)
async def match(asked: requests.Match, request: Request) -> Response:
    """Which of some labels fits a picture best."""
    asking = Asking.of(request, asked.model, "match")
    picture = await asking.picture(asked.image)
    (found,) = await asking.of_model(lambda run: run.match([picture], asked.labels, asked.templates))
    return sent(responses.Matches(model=asking.served.name, results=render.judgements(found)))


@router.post("/draw", response_model=responses.Drawings)
async def draw(asked: requests.Draw, request: Request) -> Response:
    """Draw pictures of a text."""
    asking = Asking.of(request, asked.model, "draw")
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
    return sent(
        responses.Drawings(
            model=asking.served.name, results=[responses.Drawn(picture=render.png(one.picture), score=one.score) for one in found]
        )
    )


@router.post("/attention", response_model=responses.Attention, responses=FILES)
async def attention(asked: requests.Attention, request: Request) -> Response:
    """What the model looks at when it reads a text or a picture, and with a translator or captioner what it says of it."""
    asking = Asking.of(request, asked.model, "attention")
    given = await asking.given(asked.text, asked.image)
    if asked.form == "json":
        return Response(
            await asking.of_model(lambda run: render.attention(asking.served.name, run, given, asked)),
            media_type="application/json",
        )
    data = await asking.of_model(lambda run: render.attention_file(run, given, asked))
    return Response(
        data, media_type=FORMS[asked.form], headers={"Content-Disposition": f'attachment; filename="attention.{asked.form}"'}
    )


@router.post("/explain", response_model=responses.Explained)
async def explain(asked: requests.Explain, request: Request) -> Response:
    """What each token or patch has to do with an answer, by several methods, and how far each can be trusted."""
    asking = Asking.of(request, asked.model, "explain")
    if asked.text is not None and "image" in asking.served.reads:
        raise Refused(422, f"{asking.served.name}: what is explained here are pictures; give image", code="invalid", param="text")
    given = await asking.given(asked.text, asked.image)
    return sent(await asking.of_model(lambda run: render.explained(asking.served.name, run, given, asked)))
