"""A server with made-up responses, each validated by the real server's types: for the page's tests, and to develop the page
(python tests/server/page_stub.py, then http://127.0.0.1:8765)."""

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
from regard.server.app import MEDIA_TYPES, page_files
from regard.server.limits import CONTENT_SECURITY_POLICY

GERMAN = ["Die", "Ziege", "trank", ",", "weil", "sie", "durstig", "war", "."]
ORDER = [0, 1, 2, 3, 3, 4, 6, 5, 7]


def example_image(side: int = 96) -> str:
    image = Image.new("RGB", (side, side), "#f4f1e8")
    pen = ImageDraw.Draw(image)
    pen.ellipse((12, 14, 46, 48), fill="#c0392b")
    pen.rectangle((54, 52, 84, 82), fill="#2c6fbb")
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def peaked_weights(size: int, centre: float, width: float = 0.6) -> list[float]:
    weights = [math.exp(-(((i - centre) / width) ** 2)) + 0.01 for i in range(size)]
    return [round(weight / sum(weights), 4) for weight in weights]


def peaked_map(rows: int, columns: int, y: float, x: float) -> list[list[float]]:
    weights = [[math.exp(-((i - y) ** 2 + (j - x) ** 2) / 2.5) for j in range(columns)] for i in range(rows)]
    total = sum(map(sum, weights))
    return [[round(weight / total, 4) for weight in row] for row in weights]


def model(name: str, task: str, description: str, verbs: list[str], **options) -> response_types.ModelInfo:
    defaults = dict(
        created=0,
        inputs=["text"],
        has_attention="attention" in verbs,
        attention_kinds=[],
        max_length=512,
        parameters=1_240_000,
        device="cpu",
    )
    return response_types.ModelInfo(id=name, task=task, description=description, verbs=verbs, **(defaults | options))


MODELS = [
    model(
        "demo",
        "translate",
        "translates",
        ["translate", "embed", "attention", "explain"],
        beam=5,
        attention_kinds=["cross", "encoder", "decoder"],
    ),
    model("writer", "language", "continues texts", ["generate", "embed", "attention", "explain", "completions"], max_length=4096),
    model("bert", "masked", "fills in masked words", ["fill", "embed", "attention"]),
    model("film", "classify", "labels texts", ["classify", "embed", "attention", "explain"], labels=["good", "bad"]),
    model("tagger", "tag", "labels words", ["tag"]),
    model("reader", "answer", "answers questions", ["answer"]),
    model(
        "shapes",
        "caption",
        "captions images",
        ["caption", "attention", "explain"],
        inputs=["image"],
        beam=3,
        attention_kinds=["cross", "decoder"],
    ),
    model(
        "clip", "contrastive", "matches images and texts", ["match", "embed", "attention", "explain"], inputs=["text", "image"]
    ),
    model("dalle", "text-to-image", "generates images from texts", ["draw"]),
]


def translate_response(body: request_types.TranslateRequest) -> response_types.TranslateResponse:
    """Without a head of layer 2, "sie" becomes "es"; a sentence about a dog has a dog in its translation."""
    text = str(body.text)
    lost = any(head.split(".")[-2] == "2" for head in body.ablate)
    changes = {"sie": "es" if lost else "sie", "Ziege": "Hund" if "dog" in text and "goat" not in text else "Ziege"}
    source, target = text.split(), [changes.get(word, word) for word in GERMAN]
    weights = [peaked_weights(len(source), min(ORDER[i], len(source) - 1)) for i in range(len(target))]
    uniform = [[round(1 / len(source), 4)] * len(source) for _ in target]
    alignment = response_types.AlignmentResult(
        source=source,
        target=target,
        weights=weights,
        name="cross-attention, layer 2, mean of 4 heads",
        heads=[[uniform, [peaked_weights(len(source), 0) for _ in target]], [weights, uniform]],
    )
    alternatives = [
        response_types.HypothesisResult(
            text="Die Ziege trank, weil es durstig war.", score=-0.31 - i / 10, log_probability=-3.2 - i
        )
        for i in range(body.number - 1)
    ]
    return response_types.TranslateResponse(
        model="demo",
        results=[
            response_types.TranslationResult(
                text=" ".join(target).replace(" ,", ",").replace(" .", "."),
                score=-0.12,
                log_probability=-2.3 if lost else -1.1,
                tokens=target,
                alternatives=alternatives,
                alignment=alignment if body.alignment else None,
                beam_tree=beam_tree() if body.beam_tree else None,
            )
        ],
    )


def beam_tree() -> list[response_types.BeamTreeNode]:
    nodes, parents = [], [-1]
    for step, word in enumerate([*GERMAN[:6], "</s>"], 1):
        kept = []
        for rank, parent in enumerate(parents[:3]):
            for choice in range(2):
                best = rank == 0 and choice == 0
                end = word == "</s>" and choice == 0
                nodes.append(
                    response_types.BeamTreeNode(
                        parent=parent,
                        step=step,
                        token=word if choice == 0 else f"{word.lower()}{rank}",
                        log_probability=-0.1 * step - 0.9 * rank - 1.4 * choice,
                        on_best_path=best,
                        status="ended" if end else "kept" if rank + choice < 2 else "pruned",
                        score=-0.2 - rank if end else None,
                    )
                )
                if rank + choice < 2:
                    kept.append(len(nodes) - 1)
        parents = sorted(kept, key=lambda i: -nodes[i].log_probability)
    return nodes


WORDS = ["there", " was", " an", " old", " goat", ",", " which", " wanted", " nothing", " but", " a", " little", " water", "."]


def generation_result(body: request_types.GenerateRequest) -> response_types.GenerationResult:
    prompt = [word if i == 0 else " " + word for i, word in enumerate(str(body.prompt).split(" "))]
    tokens = [" " + WORDS[0], *WORDS[1:]] * max(1, body.max_tokens // 14)
    keys, start = [*prompt, *tokens[:-1]], len(prompt)
    probabilities = [0.9, 0.62, 0.33, 0.08, 0.02, 0.71, 0.4, 0.55, 0.11, 0.93, 0.5, 0.2, 0.77, 0.98]
    weights = [
        [*peaked_weights(start + i, start + i - 1 - (i * 3 % 5), 1.5), *[0.0] * (len(keys) - start - i)]
        for i in range(len(tokens))
    ]
    steps = [
        response_types.GeneratedStep(
            token=word, probability=probabilities[i % 14], alternatives=[(" dog", 0.05), (" <b>cow</b>", 0.03), ("\n", 0.01)]
        )
        for i, word in enumerate(tokens)
    ]
    attention = response_types.GenerationAttention(
        name="self-attention, layer 2, mean", keys=keys, first_generated_key=start, steps=steps, weights=weights, note=""
    )
    return response_types.GenerationResult(
        text=str(body.prompt) + "".join(tokens),
        continuation="".join(tokens),
        score=-20.0,
        tokens=tokens,
        probabilities=[step.probability for step in steps],
        finish_reason="stop",
        attention=attention if body.attention else None,
    )


def attention_response(body: request_types.AttentionRequest) -> response_types.AttentionResponse:
    image = body.image is not None
    words = [f"{i // 6 + 1},{i % 6 + 1}" for i in range(36)] if image else str(body.text).split()
    if words[0] == "many" and body.layers is None:
        raise ValueError("2,000,000 weights are more than 1,000,000; ask for fewer layers or heads")
    if body.layers and body.layers[0] > 3:
        raise ValueError("layer 4: there are 3")
    tile_size = math.ceil(len(words) / 160)
    names = words if tile_size == 1 else [f"{i + 1} {words[i]}…" for i in range(0, len(words), tile_size)]
    size = len(names)
    weights = [
        [[peaked_weights(size, max(0, i - head * (layer + 1)), 0.5 + head) for i in range(size)] for head in range(4)]
        for layer in range(3)
        if body.layers in (None, [layer + 1])
    ]
    return response_types.AttentionResponse(
        model="x",
        name=f"{body.kind or 'self'}-attention",
        names=["self-attention"],
        queries=names,
        keys=names,
        layers=body.layers or [1, 2, 3],
        heads=[1, 2, 3, 4],
        weights=weights,
        sharpest_layer=0,
        tile_size=tile_size,
        note="",
        grid=(6, 6) if image else None,
        image=example_image() if image else None,
    )


def explain_response(body: request_types.ExplainRequest) -> response_types.ExplainResponse:
    image = body.image is not None
    tokens = [f"{i // 6 + 1},{i % 6 + 1}" for i in range(36)] if image else str(body.text).split()
    size = len(tokens)
    attributions = {
        "attention": peaked_weights(size, 1),
        "rollout": peaked_weights(size, 2, 3),
        "occlusion": [one - 0.1 for one in peaked_weights(size, 1, 1)],
    }
    faithfulness = {
        "attention": {"comprehensiveness": 0.62, "sufficiency": 0.08, "spearman": 0.71, "randomized": 0.12},
        "rollout": {"comprehensiveness": 0.2, "sufficiency": 0.3, "spearman": 0.31, "randomized": 0.86},
        "occlusion": {"comprehensiveness": 0.7, "sufficiency": 0.02, "spearman": 1.0, "randomized": None},
        "random": {"comprehensiveness": 0.14, "sufficiency": 0.55},
    }
    verdict = (
        "Believe occlusion here: without its top tokens the log-probability of the output falls by 0.70 nats (comprehensiveness; "
        "random tokens: 0.14), and with them alone it falls by 0.02 nats (sufficiency; random tokens: 0.55)."
    )
    summary = [verdict]
    summary += [
        f"{name}: better than random tokens on both tests (comprehensiveness {faithfulness[name]['comprehensiveness']:.2f})."
        for name in attributions
    ]
    summary += [
        "Permuting the attention weights of layer 2 of 2, mean over heads changes the outputs by 0.43 of their probability.",
        "One sentence says little about a method: regard explain RUN --data SET measures it over many.",
    ]
    which = body.word or body.label or body.fits or "1"
    return response_types.ExplainResponse(
        model="x",
        target=f"the word {which!r}, 2 of 9",
        score=0.93,
        tokens=tokens,
        attributions=attributions,
        alternative=None,
        alternative_score=None,
        alternative_attributions=None,
        unavailable={"flow": "for up to 64 tokens"},
        faithfulness=faithfulness,
        permutation_effect=0.43,
        attention="layer 2 of 2, mean over heads" if body.head is None else f"layer {body.layer} of 2, head {body.head}",
        unit="nats",
        best="occlusion",
        verdict=verdict,
        summary=summary,
        grid=(6, 6) if image else None,
        image=example_image() if image else None,
    )


def caption_response(body: request_types.CaptionRequest) -> response_types.CaptionResponse:
    words = ["a", "red", "circle", "above", "a", "blue", "square"]
    maps = [peaked_map(6, 6, 1.5, 1.5) if i < 4 else peaked_map(6, 6, 4, 4) for i in range(len(words))]
    attention = response_types.CaptionAttention(
        words=words, grid=(6, 6), maps=maps, name="cross-attention, layer 2", image=example_image()
    )
    return response_types.CaptionResponse(
        model="shapes",
        results=[
            response_types.CaptionResult(
                text=" ".join(words),
                score=-0.2,
                log_probability=-2.0,
                tokens=words,
                alternatives=[],
                attention=attention if body.attention else None,
            )
        ],
    )


def labels_with_probabilities(*labels: str) -> list[response_types.LabelProbability]:
    probabilities = [0.72, 0.2, 0.05, 0.02, 0.008, 0.002]
    return [response_types.LabelProbability(label=label, probability=probabilities[min(i, 5)]) for i, label in enumerate(labels)]


def fill_response(body: request_types.FillRequest) -> response_types.FillResponse:
    masks = str(body.text).count("[MASK]")
    if not masks:
        raise ValueError("there is no [MASK] in the text; put one in the place of a word")
    found = [labels_with_probabilities("old", "small", "grey", "<i>x</i>")] * masks
    return response_types.FillResponse(
        model="bert", results=[response_types.FillResult(text=str(body.text).replace("[MASK]", "old"), candidates=found)]
    )


def tag_response(body: request_types.TagRequest) -> response_types.TagResponse:
    words = str(body.text).split()
    labels = ["DET", "ADJ", "NOUN", "VERB", "DET", "NOUN", "O"]
    return response_types.TagResponse(
        model="tagger", results=[response_types.TaggingResult(words=words, labels=[labels[i % 7] for i in range(len(words))])]
    )


def answer_response(body: request_types.AnswerRequest) -> response_types.AnswerResponse:
    spans = [("The old dog", 0, 11, 0.8), ("dog", 8, 11, 0.1)]
    return response_types.AnswerResponse(
        model="reader",
        results=[response_types.AnswerSpanItem(text=text, start=start, end=end, probability=p) for text, start, end, p in spans],
    )


def classify_response(body: request_types.ClassifyRequest) -> response_types.ClassifyResponse:
    return response_types.ClassifyResponse(
        model="film", results=[response_types.ClassificationResult(labels=labels_with_probabilities("good", "bad"))]
    )


def next_token_response(body: request_types.NextTokenRequest) -> response_types.NextTokenResponse:
    probabilities = [0.5, 0.25, 0.125, 0.0625]
    return response_types.NextTokenResponse(
        model="writer",
        tokens=["goat", "dog", "pig", "cat"],
        log_probabilities=[math.log(p) for p in probabilities],
        rest=[[math.log(0.0625 / 10), 10]],
    )


VERBS = {
    "next-token": (request_types.NextTokenRequest, next_token_response),
    "translate": (request_types.TranslateRequest, translate_response),
    "fill": (request_types.FillRequest, fill_response),
    "classify": (request_types.ClassifyRequest, classify_response),
    "tag": (request_types.TagRequest, tag_response),
    "answer": (request_types.AnswerRequest, answer_response),
    "embed": (
        request_types.EmbedRequest,
        lambda body: response_types.EmbedResponse(
            model="x",
            results=[
                response_types.EmbeddingResult(tokens=text.split(), vectors=[[math.sin(len(text)), math.cos(len(text)), i / 3]])
                for i, text in enumerate(body.text)
            ],
        ),
    ),
    "caption": (request_types.CaptionRequest, caption_response),
    "match": (
        request_types.MatchRequest,
        lambda body: response_types.MatchResponse(model="clip", results=labels_with_probabilities(*body.labels)),
    ),
    "draw": (
        request_types.DrawRequest,
        lambda body: response_types.DrawResponse(
            model="dalle",
            results=[response_types.ImageResult(image=example_image(), score=0.3 - i / 20) for i in range(body.number)],
        ),
    ),
    "attention": (request_types.AttentionRequest, attention_response),
    "explain": (request_types.ExplainRequest, explain_response),
    "generate": (
        request_types.GenerateRequest,
        lambda body: response_types.GenerateResponse(model="writer", results=[generation_result(body)]),
    ),
}


def error_response(status: int, message: str, **headers: str) -> JSONResponse:
    body = response_types.ErrorResponse(error=response_types.ErrorDetail(message=message, type="invalid_request_error"))
    return JSONResponse(
        body.model_dump(), status_code=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def create_stub(token: str | None = None) -> FastAPI:
    app = FastAPI()
    app.state.requests = []

    @app.middleware("http")
    async def check_token(request: Request, call_next):
        is_api = request.url.path.startswith("/v1")
        if is_api and token and request.headers.get("authorization") != f"Bearer {token}":
            return error_response(401, "send the server's token: Authorization: Bearer TOKEN")
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        return response

    @app.get("/")
    async def page() -> Response:
        return FileResponse(page_files()["index.html"], media_type=MEDIA_TYPES[".html"])

    @app.get("/page/{name}")
    async def page_file(name: str) -> Response:
        return FileResponse(page_files()[name], media_type=MEDIA_TYPES[Path(name).suffix])

    @app.get("/v1/models")
    async def models() -> response_types.ModelsResponse:
        return response_types.ModelsResponse(data=MODELS)

    @app.get("/v1/models/{name}/examples")
    async def examples(name: str) -> response_types.ExamplesResponse:
        return response_types.ExamplesResponse(model=name)

    @app.post("/v1/{verb}")
    async def respond(verb: str, request: Request) -> Response:
        request_type, build_response = VERBS[verb]
        content = await request.json()
        app.state.requests.append((verb, content))
        try:
            body = request_type.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            return error_response(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        if str(content.get("text", "")).startswith("busy"):
            return error_response(503, "the queue is full.", Retry_After="3")
        if verb == "attention" and body.format != "json":
            return Response(b"<svg xmlns='http://www.w3.org/2000/svg'/>", media_type="image/svg+xml")
        try:
            response = build_response(body)
        except ValueError as error:
            return error_response(422, str(error))
        if verb == "generate" and body.stream:
            return StreamingResponse(stream_events(body, response), media_type="text/event-stream")
        return JSONResponse(response.model_dump(mode="json"))

    return app


async def stream_events(body: request_types.GenerateRequest, response: response_types.GenerateResponse):
    result = response.results[0]
    for i, word in enumerate(result.tokens):
        await asyncio.sleep(0.01 if len(result.tokens) > 20 else 0.05)
        event = response_types.TokenEvent(index=0, text=word, token=word, probability=result.probabilities[i])
        yield f"data: {event.model_dump_json()}\n\n"
        if str(body.prompt).startswith("break") and i == 4:
            error = response_types.ErrorResponse(
                error=response_types.ErrorDetail(message="the model failed; try again", type="server_error")
            )
            yield f"data: {error.model_dump_json()}\n\n"
            yield "data: [DONE]\n\n"
            return
    yield f"data: {json.dumps({'done': response.model_dump(mode='json')})}\n\n"
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
    uvicorn.run(create_stub(), host="127.0.0.1", port=8765, log_level="warning")
