"""A server that answers the page from made-up answers, each checked by the types of the real one: for the page's tests, and to
look at it while it is built (python tests/server/page_stub.py, then http://127.0.0.1:8765)."""

import asyncio
import base64
import json
import math
import threading
from io import BytesIO
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from PIL import Image, ImageDraw
from pydantic import ValidationError

from regard.server import request_types, response_types
from regard.server.app import MEDIA_TYPES, PAGE_FOLDER
from regard.server.limits import CONTENT_SECURITY_POLICY

GERMAN = ["Die", "Ziege", "trank", ",", "weil", "sie", "durstig", "war", "."]
ORDER = [0, 1, 2, 3, 3, 4, 6, 5, 7]


def picture(side: int = 96) -> str:
    image = Image.new("RGB", (side, side), "#f4f1e8")
    pen = ImageDraw.Draw(image)
    pen.ellipse((12, 14, 46, 48), fill="#c0392b")
    pen.rectangle((54, 52, 84, 82), fill="#2c6fbb")
    kept = BytesIO()
    image.save(kept, "PNG")
    return base64.b64encode(kept.getvalue()).decode()


def near(size: int, centre: float, width: float = 0.6) -> list[float]:
    some = [math.exp(-(((i - centre) / width) ** 2)) + 0.01 for i in range(size)]
    return [round(one / sum(some), 4) for one in some]


def spot(rows: int, columns: int, y: float, x: float) -> list[list[float]]:
    some = [[math.exp(-((i - y) ** 2 + (j - x) ** 2) / 2.5) for j in range(columns)] for i in range(rows)]
    total = sum(map(sum, some))
    return [[round(one / total, 4) for one in row] for row in some]


def model(name: str, task: str, does: str, verbs: list[str], **more) -> response_types.ModelInfo:
    given = dict(
        created=0, reads=["text"], attends="attention" in verbs, kinds=[], max_length=512, parameters=1_240_000, device="cpu"
    )
    return response_types.ModelInfo(id=name, task=task, does=does, verbs=verbs, **(given | more))


MODELS = [
    model(
        "demo",
        "translate",
        "translates",
        ["translate", "embed", "attention", "explain"],
        beam=5,
        kinds=["cross", "encoder", "decoder"],
    ),
    model("writer", "language", "writes on", ["generate", "embed", "attention", "explain", "completions"], max_length=4096),
    model("bert", "masked", "fills in masked words", ["fill", "embed", "attention"]),
    model("film", "classify", "labels texts", ["classify", "embed", "attention", "explain"], labels=["good", "bad"]),
    model("tagger", "tag", "labels words", ["tag"]),
    model("reader", "answer", "answers questions", ["answer"]),
    model(
        "shapes",
        "caption",
        "captions pictures",
        ["caption", "attention", "explain"],
        reads=["image"],
        beam=3,
        kinds=["cross", "decoder"],
    ),
    model(
        "clip", "contrastive", "matches pictures and texts", ["match", "embed", "attention", "explain"], reads=["text", "image"]
    ),
    model("dalle", "text-to-image", "draws from captions", ["draw"]),
]


def translated(asked: request_types.TranslateRequest) -> response_types.TranslateResponse:
    text = str(asked.text)
    source, target = text.split(), GERMAN
    weights = [near(len(source), min(ORDER[i], len(source) - 1)) for i in range(len(target))]
    align = response_types.AlignmentResult(
        source=source, target=target, weights=weights, name="cross-attention, layer 2, mean of 4 heads"
    )
    others = [
        response_types.HypothesisResult(
            text="Die Ziege trank, weil es durstig war.", score=-0.31 - i / 10, log_probability=-3.2 - i
        )
        for i in range(asked.number - 1)
    ]
    return response_types.TranslateResponse(
        model="demo",
        results=[
            response_types.TranslationResult(
                text="Die Ziege trank, weil sie durstig war.",
                score=-0.12,
                log_probability=-1.1,
                tokens=target,
                others=others,
                alignment=align if asked.align else None,
                tree=grown() if asked.tree else None,
            )
        ],
    )


def grown() -> list[response_types.BeamTreeNode]:
    nodes, parents = [], [-1]
    for step, word in enumerate([*GERMAN[:6], "</s>"], 1):
        after = []
        for rank, parent in enumerate(parents[:3]):
            for choice in range(2):
                best = rank == 0 and choice == 0
                end = word == "</s>" and choice == 0
                nodes.append(
                    response_types.BeamTreeNode(
                        parent=parent,
                        step=step,
                        word=word if choice == 0 else f"{word.lower()}{rank}",
                        log_probability=-0.1 * step - 0.9 * rank - 1.4 * choice,
                        best=best,
                        fate="ended" if end else "kept" if rank + choice < 2 else "pruned",
                        score=-0.2 - rank if end else None,
                    )
                )
                if rank + choice < 2:
                    after.append(len(nodes) - 1)
        parents = sorted(after, key=lambda i: -nodes[i].log_probability)
    return nodes


WORDS = ["there", " was", " an", " old", " goat", ",", " which", " wanted", " nothing", " but", " a", " little", " water", "."]


def wrote(asked: request_types.GenerateRequest) -> response_types.GenerationResult:
    prompt = [piece if i == 0 else " " + piece for i, piece in enumerate(str(asked.prompt).split(" "))]
    said = [" " + WORDS[0], *WORDS[1:]] * max(1, asked.max_tokens // 14)
    keys, own = [*prompt, *said[:-1]], len(prompt)
    chances = [0.9, 0.62, 0.33, 0.08, 0.02, 0.71, 0.4, 0.55, 0.11, 0.93, 0.5, 0.2, 0.77, 0.98]
    weights = [[*near(own + i, own + i - 1 - (i * 3 % 5), 1.5), *[0.0] * (len(keys) - own - i)] for i in range(len(said))]
    steps = [
        response_types.GeneratedStep(
            word=word, probability=chances[i % 14], others=[(" dog", 0.05), (" <b>cow</b>", 0.03), ("\n", 0.01)]
        )
        for i, word in enumerate(said)
    ]
    looks = response_types.GenerationAttention(
        name="self-attention, layer 2, mean", keys=keys, own=own, steps=steps, weights=weights, note=""
    )
    return response_types.GenerationResult(
        text=str(asked.prompt) + "".join(said),
        written="".join(said),
        score=-20.0,
        tokens=said,
        probabilities=[step.probability for step in steps],
        finish_reason="stop",
        looks=looks if asked.looks else None,
    )


def attended(asked: request_types.AttentionRequest) -> response_types.AttentionResponse:
    image = asked.image is not None
    words = [f"{i // 6 + 1},{i % 6 + 1}" for i in range(36)] if image else str(asked.text).split()
    if words[0] == "many" and asked.layers is None:
        raise ValueError("2,000,000 numbers are more than 1,000,000; name fewer layers or heads")
    if asked.layers and asked.layers[0] > 3:
        raise ValueError("layer 4: there are 3")
    tile = math.ceil(len(words) / 160)
    names = words if tile == 1 else [f"{i + 1} {words[i]}…" for i in range(0, len(words), tile)]
    size = len(names)
    weights = [
        [[near(size, max(0, i - head * (layer + 1)), 0.5 + head) for i in range(size)] for head in range(4)]
        for layer in range(3)
        if asked.layers in (None, [layer + 1])
    ]
    return response_types.AttentionResponse(
        model="x",
        name=f"{asked.kind or 'self'}-attention",
        names=["self-attention"],
        queries=names,
        keys=names,
        layers=asked.layers or [1, 2, 3],
        heads=[1, 2, 3, 4],
        weights=weights,
        sharpest=0,
        tile=tile,
        note="",
        grid=(6, 6) if image else None,
        picture=picture() if image else None,
    )


def explained(asked: request_types.ExplainRequest) -> response_types.ExplainResponse:
    image = asked.image is not None
    pieces = [f"{i // 6 + 1},{i % 6 + 1}" for i in range(36)] if image else str(asked.text).split()
    size = len(pieces)
    values = {"attention": near(size, 1), "rollout": near(size, 2, 3), "occlusion": [one - 0.1 for one in near(size, 1, 1)]}
    faith = {
        "attention": {"comprehensiveness": 0.62, "sufficiency": 0.08, "spearman": 0.71, "randomized": 0.12},
        "rollout": {"comprehensiveness": 0.2, "sufficiency": 0.3, "spearman": 0.31, "randomized": 0.86},
        "occlusion": {"comprehensiveness": 0.7, "sufficiency": 0.02, "spearman": 1.0, "randomized": None},
        "random": {"comprehensiveness": 0.14, "sufficiency": 0.55},
    }
    words = [
        f"{name}: without the tokens it names the answer loses {faith[name]['comprehensiveness']:.2f} of its probability, "
        "more than without random tokens (0.14)."
        for name in values
    ]
    words += [
        "Permuting the weights that are shown moves the answers by 0.43 of their probability.",
        "One sentence says little of a method: regard explain RUN --data SET measures it over many.",
    ]
    which = asked.word or asked.label or asked.fits or "1"
    return response_types.ExplainResponse(
        model="x",
        answer=f"the word {which!r}, 2 of 9",
        amount=0.93,
        pieces=pieces,
        values=values,
        against=None,
        against_amount=None,
        against_values=None,
        refused={"flow": "for up to 64 tokens"},
        faithfulness=faith,
        permuted=0.43,
        words=words,
        grid=(6, 6) if image else None,
        picture=picture() if image else None,
    )


def captioned(asked: request_types.CaptionRequest) -> response_types.CaptionResponse:
    words = ["a", "red", "circle", "above", "a", "blue", "square"]
    maps = [spot(6, 6, 1.5, 1.5) if i < 4 else spot(6, 6, 4, 4) for i in range(len(words))]
    shown = response_types.CaptionAttention(
        words=words, grid=(6, 6), maps=maps, name="cross-attention, layer 2", picture=picture()
    )
    return response_types.CaptionResponse(
        model="shapes",
        results=[
            response_types.CaptionResult(
                text=" ".join(words),
                score=-0.2,
                log_probability=-2.0,
                tokens=words,
                others=[],
                looks=shown if asked.looks else None,
            )
        ],
    )


def judged(*labels: str) -> list[response_types.LabelProbability]:
    chances = [0.72, 0.2, 0.05, 0.02, 0.008, 0.002]
    return [response_types.LabelProbability(label=label, probability=chances[min(i, 5)]) for i, label in enumerate(labels)]


def filled(asked: request_types.FillRequest) -> response_types.FillResponse:
    masks = str(asked.text).count("[MASK]")
    if not masks:
        raise ValueError("there is no [MASK] in the text; put one where a word is left out")
    found = [judged("old", "small", "grey", "<i>x</i>")] * masks
    return response_types.FillResponse(
        model="bert", results=[response_types.FillResult(text=str(asked.text).replace("[MASK]", "old"), candidates=found)]
    )


def tagged(asked: request_types.TagRequest) -> response_types.TagResponse:
    words = str(asked.text).split()
    labels = ["DET", "ADJ", "NOUN", "VERB", "DET", "NOUN", "O"]
    return response_types.TagResponse(
        model="tagger", results=[response_types.TaggingResult(words=words, labels=[labels[i % 7] for i in range(len(words))])]
    )


def answered(asked: request_types.AnswerRequest) -> response_types.AnswerResponse:
    spans = [("The old dog", 0, 11, 0.8), ("dog", 8, 11, 0.1)]
    return response_types.AnswerResponse(
        model="reader",
        results=[response_types.AnswerSpanItem(text=text, start=start, end=end, probability=p) for text, start, end, p in spans],
    )


def classified(asked: request_types.ClassifyRequest) -> response_types.ClassifyResponse:
    return response_types.ClassifyResponse(
        model="film", results=[response_types.ClassificationResult(labels=judged("good", "bad"))]
    )


VERBS = {
    "translate": (request_types.TranslateRequest, translated),
    "fill": (request_types.FillRequest, filled),
    "classify": (request_types.ClassifyRequest, classified),
    "tag": (request_types.TagRequest, tagged),
    "answer": (request_types.AnswerRequest, answered),
    "embed": (
        request_types.EmbedRequest,
        lambda asked: response_types.EmbedResponse(
            model="x",
            results=[
                response_types.EmbeddingResult(tokens=text.split(), vectors=[[math.sin(len(text)), math.cos(len(text)), i / 3]])
                for i, text in enumerate(asked.text)
            ],
        ),
    ),
    "caption": (request_types.CaptionRequest, captioned),
    "match": (
        request_types.MatchRequest,
        lambda asked: response_types.MatchResponse(model="clip", results=judged(*asked.labels)),
    ),
    "draw": (
        request_types.DrawRequest,
        lambda asked: response_types.DrawResponse(
            model="dalle",
            results=[response_types.ImageResult(picture=picture(), score=0.3 - i / 20) for i in range(asked.number)],
        ),
    ),
    "attention": (request_types.AttentionRequest, attended),
    "explain": (request_types.ExplainRequest, explained),
    "generate": (
        request_types.GenerateRequest,
        lambda asked: response_types.GenerateResponse(model="writer", results=[wrote(asked)]),
    ),
}


def refused(status: int, message: str, **headers: str) -> JSONResponse:
    said = response_types.ErrorResponse(error=response_types.ErrorDetail(message=message, type="invalid_request_error"))
    return JSONResponse(
        said.model_dump(), status_code=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def stub(token: str | None = None) -> FastAPI:
    app = FastAPI()
    app.state.heard = []

    @app.middleware("http")
    async def guard(request: Request, call_next):
        private = request.url.path.startswith("/v1")
        if private and token and request.headers.get("authorization") != f"Bearer {token}":
            return refused(401, "send the server's token: Authorization: Bearer TOKEN")
        answer = await call_next(request)
        answer.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        return answer

    @app.get("/")
    async def page() -> Response:
        return FileResponse(PAGE_FOLDER / "index.html", media_type=MEDIA_TYPES[".html"])

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        return FileResponse(PAGE_FOLDER / name, media_type=MEDIA_TYPES[Path(name).suffix])

    @app.get("/v1/models")
    async def models() -> response_types.ModelsResponse:
        return response_types.ModelsResponse(data=MODELS)

    @app.post("/v1/{verb}")
    async def answer(verb: str, request: Request) -> Response:
        type_, say = VERBS[verb]
        body = await request.json()
        app.state.heard.append((verb, body))
        try:
            asked = type_.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            return refused(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        if str(body.get("text", "")).startswith("busy"):
            return refused(503, "too many are waiting.", Retry_After="3")
        if verb == "attention" and asked.form != "json":
            return Response(b"<svg xmlns='http://www.w3.org/2000/svg'/>", media_type="image/svg+xml")
        try:
            said = say(asked)
        except ValueError as error:
            return refused(422, str(error))
        if verb == "generate" and asked.stream:
            return StreamingResponse(events(asked, said), media_type="text/event-stream")
        return JSONResponse(said.model_dump(mode="json"))

    return app


async def events(asked: request_types.GenerateRequest, said: response_types.GenerateResponse):
    whole = said.results[0]
    for i, word in enumerate(whole.tokens):
        await asyncio.sleep(0.01 if len(whole.tokens) > 20 else 0.05)
        piece = response_types.TokenEvent(index=0, piece=word, token=word, probability=whole.probabilities[i])
        yield f"data: {piece.model_dump_json()}\n\n"
        if str(asked.prompt).startswith("break") and i == 4:
            problem = response_types.ErrorResponse(
                error=response_types.ErrorDetail(message="the model stumbled; ask again", type="server_error")
            )
            yield f"data: {problem.model_dump_json()}\n\n"
            yield "data: [DONE]\n\n"
            return
    yield f"data: {json.dumps({'done': said.model_dump(mode='json')})}\n\n"
    yield "data: [DONE]\n\n"


class Running:
    """The stub in a thread, at any free port."""

    def __init__(self, app: FastAPI, port: int = 0):
        self.app = app
        self.server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        while not self.server.started:
            threading.Event().wait(0.02)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}/"

    def __exit__(self, *_) -> None:
        self.server.should_exit = True
        self.thread.join(5)


if __name__ == "__main__":
    uvicorn.run(stub(), host="127.0.0.1", port=8765, log_level="warning")
