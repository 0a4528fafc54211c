"""Build responses from what runs return: round numbers, encode images as PNG in base64. Called in a model's thread."""

import base64
import json
import tempfile
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np
from PIL import Image

from regard.errors import UserError
from regard.explain.explanation import round_values
from regard.scoring.alignment import sharpest_layer
from regard.server import request_types, response_types
from regard.server.jobs import ModelInput
from regard.show.attention import show_attention
from regard.show.beam import build_beam_tree, show_beam_tree
from regard.show.figures.beam_tree import BeamNode
from regard.show.figures.decoding_steps import GenerationTrace
from regard.show.generation import trace_tokens
from regard.show.image_attention import show_image_attention
from regard.show.recording import attention_maps, record_attention
from regard.show.selection import ViewSelection, resolve_indices, select_group
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.classify import ClassifyRun
from regard.tasks.language import LanguageRun
from regard.tasks.regress import RegressRun
from regard.tasks.shared.embedding import EmbeddedText
from regard.tasks.shared.labels import Prediction
from regard.tasks.shared.requests import StreamResult
from regard.tasks.text_to_text import TextToTextRun
from regard.tasks.translate import TranslateRun, Translation
from regard.tokens.tokenizer import Tokenizer

DIGITS = 6
MAX_WEIGHTS = 1_000_000
"""Numbers in one response."""
SEED_LOCK = threading.Lock()
"""Explanations build a randomly initialised model from torch's global seed, which all threads share."""
Decoded = TypeVar("Decoded", bound=response_types.DecodedResult)


class EmbeddingRun(Protocol):
    """A run with the verb `embed`."""

    tokenizers: list[Tokenizer]

    def embed(self, inputs: Sequence[ModelInput], /, *, layer: int, pool: str) -> list[EmbeddedText]: ...


def require_tasks(run: Run) -> TextToTextRun:
    """Return a run of several tasks, of which a request may name one."""
    if run.task.name != "text-to-text":
        raise UserError("task: this model has no other tasks; leave it out")
    return cast(TextToTextRun, run)


def label_probabilities(predictions: Sequence[Prediction]) -> list[response_types.LabelProbability]:
    return [response_types.LabelProbability(label=one.label, probability=round(one.probability, DIGITS)) for one in predictions]


def png_base64(pixels: np.ndarray) -> str:
    buffer = BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


# decoded texts


def decoded_result(
    result_type: type[Decoded], tokenizer: Tokenizer, hypotheses: Sequence[Translation], **views: object
) -> Decoded:
    """Return the best hypothesis, its alternatives, and the views that the type has."""
    texts = [{"text": one.text, "score": one.score, "log_probability": one.log_probability} for one in hypotheses]
    tokens = tokenizer.labels(hypotheses[0].tokens)
    return result_type.model_validate({**texts[0], "tokens": tokens, "alternatives": texts[1:], **views})


def translation_results(
    run: TranslateRun,
    texts: Sequence[str],
    translations: Sequence[Sequence[Translation]],
    request: request_types.TranslateRequest,
) -> list[response_types.TranslationResult]:
    """Return translations, with their alignment and beam tree where the request asks for them."""
    nonempty = [i for i, hypotheses in enumerate(translations) if hypotheses[0].tokens]
    alignments, trees = {}, {}
    if request.alignment:
        found = run._align_translations([texts[i] for i in nonempty], [translations[i][0] for i in nonempty])
        for i, alignment in zip(nonempty, found):
            weights, name = alignment.view()
            fits = alignment.weights.size * len(nonempty) <= MAX_WEIGHTS
            alignments[i] = response_types.AlignmentResult(
                source=alignment.source,
                target=alignment.target,
                weights=np.round(weights, 4).tolist(),
                name=name,
                heads=np.round(alignment.weights, 4).tolist() if fits else [],
            )
    if request.beam_tree:
        decode = run.recipe.decode
        beam = max(2, request.beam or decode.beam)
        length_penalty = decode.length_penalty if request.length_penalty is None else request.length_penalty
        for i in nonempty:
            nodes, _ = build_beam_tree(run, texts[i], beam, length_penalty, request.max_tokens)
            trees[i] = [beam_node(node) for node in nodes]
    return [
        decoded_result(
            response_types.TranslationResult,
            run.tokenizers[1],
            hypotheses,
            alignment=alignments.get(i),
            beam_tree=trees.get(i),
        )
        for i, hypotheses in enumerate(translations)
    ]


def beam_node(node: BeamNode) -> response_types.BeamTreeNode:
    return response_types.BeamTreeNode(
        parent=node.parent,
        step=node.step,
        token=node.word,
        on_best_path=node.best,
        log_probability=round(node.log_p, 4),
        status=node.fate,
        score=None if node.score is None else round(node.score, 4),
    )


def generation_results(
    run: LanguageRun, prompts: Sequence[str], generated: Sequence[StreamResult], request: request_types.GenerateRequest
) -> list[response_types.GenerationResult]:
    """Return generated texts, `number` of each prompt, with their attention where the request asks for it."""
    selection = ViewSelection("steps", request.kind, request.layer, request.head)
    repeated = [prompt for prompt in prompts for _ in range(request.number)]
    return [
        response_types.GenerationResult(
            text=one.text.text,
            continuation=one.text.continuation,
            score=one.text.score,
            tokens=one.words,
            probabilities=[round(p, DIGITS) for p in one.probabilities],
            finish_reason="length" if one.cut else "stop",
            attention=generation_attention(trace_tokens(run, prompt, one.text.tokens, selection))
            if request.attention and one.text.tokens
            else None,
        )
        for prompt, one in zip(repeated, generated)
    ]


def generation_attention(trace: GenerationTrace) -> response_types.GenerationAttention:
    return response_types.GenerationAttention(
        name=trace.name,
        keys=list(trace.keys),
        first_generated_key=trace.own,
        weights=np.round(trace.weights, 4).tolist(),
        note=trace.note or "",
        steps=[
            response_types.GeneratedStep(
                token=step.word,
                probability=round(step.probability, DIGITS),
                alternatives=[[word, round(p, DIGITS)] for word, p in step.others],
            )
            for step in trace.steps
        ],
    )


def caption_result(
    run: CaptionRun, image: Image.Image, hypotheses: Sequence[Translation], request: request_types.CaptionRequest
) -> response_types.CaptionResult:
    """Return a caption, with its attention where the request asks for it."""
    attention = None
    if request.attention and hypotheses[0].tokens:
        pixels = run._images.decode([image])
        (aligned,) = run._align_tokens(pixels, [hypotheses[0].tokens])
        attention = response_types.CaptionAttention(
            words=aligned.words,
            grid=list(run.model.grid),
            maps=np.round(aligned.weights, 4).tolist(),
            name="cross-attention, mean over the heads of the sharpest layer",
            image=png_base64(pixels[0]),
        )
    return decoded_result(response_types.CaptionResult, run.tokenizers[0], hypotheses, attention=attention)


# labels and vectors


def classify_inputs(run: Run, inputs: Sequence[ModelInput], task: str | None) -> list[response_types.ClassificationResult]:
    texts = cast(Sequence[str], inputs)  # or images, where the model reads those
    found: Sequence[Sequence[Prediction] | float] = (
        cast(ClassifyRun | RegressRun, run).classify(texts) if task is None else require_tasks(run).classify(texts, task)
    )
    return [
        response_types.ClassificationResult(labels=[], score=one)
        if isinstance(one, float)
        else response_types.ClassificationResult(labels=label_probabilities(one))
        for one in found
    ]


def embed_inputs(
    run: EmbeddingRun, inputs: Sequence[ModelInput], layer: int = -1, pool: str = "mean"
) -> list[response_types.EmbeddingResult]:
    is_text = isinstance(inputs[0], str)
    return [
        response_types.EmbeddingResult(
            tokens=one.tokens if pool == "words" or is_text else [],
            vectors=np.round(one.vectors.astype(float), DIGITS).tolist(),
        )
        for one in run.embed(inputs, layer=layer, pool=pool)
    ]


# attention and explanations


def attention_json(name: str, run: Run, given: ModelInput, request: request_types.AttentionRequest) -> bytes:
    groups = attention_maps(record_attention(run, given))
    group = groups[select_group(groups, request.kind)]
    selected_layers = (ViewSelection("model", layer=int(name)) for name in request.layers or group.layers)
    selected_heads = (ViewSelection("model", head=int(name)) for name in request.heads or group.heads)
    layers = [cast(int, resolve_indices(group, selection).layer) for selection in selected_layers]
    heads = [cast(int, resolve_indices(group, selection).head) for selection in selected_heads]
    weights = group.weights[np.ix_(layers, heads)]  # (L, H, T, S)
    if weights.size > MAX_WEIGHTS:
        raise UserError(f"{weights.size:,} weights are more than {MAX_WEIGHTS:,}; ask for fewer layers or heads")
    image = None if isinstance(given, str) else run._images.decode([given])[0]
    response = response_types.AttentionResponse.model_construct(
        model=name,
        name=group.name,
        names=[one.name for one in groups],
        queries=list(group.queries),
        keys=list(group.keys),
        layers=[int(group.layers[i]) for i in layers],
        heads=[int(group.heads[i]) for i in heads],
        weights=np.round(weights.astype(float), request.digits).tolist(),
        sharpest_layer=sharpest_layer(weights),
        tile_size=group.tile,
        note=group.note or "",
        grid=None if image is None else list(run._image_encoder[1].grid(image.shape[:2])),
        image=None if image is None else png_base64(image),
    )
    return json.dumps(response.model_dump(), ensure_ascii=False, allow_nan=False).encode()


def attention_file(run: Run, given: ModelInput, request: request_types.AttentionRequest) -> bytes:
    """Return a recording of all attention (.attn), or one view as a figure."""
    layer, head = (None if not numbers else numbers[0] for numbers in (request.layers, request.heads))
    if layer is None and head is not None:
        layer = 1
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        out = Path(folder, f"attention.{request.format}")
        if request.format == "attn":
            record_attention(run, given).write(out)
        elif request.view == "beam":
            if "translate" not in run.task.verbs:
                raise UserError("view beam: needs a model of ours that translates")
            show_beam_tree(cast(TranslateRun, run), str(given)).save(out)
        else:
            selection = ViewSelection(request.view, request.kind, layer, head, request.token)
            if isinstance(given, str):
                show_attention(run, given, selection).save(out)
            else:
                show_image_attention(run, given, selection).save(out)
        return out.read_bytes()


def explain_response(
    name: str, run: Run, given: ModelInput, request: request_types.ExplainRequest
) -> response_types.ExplainResponse:
    options = ("label", "word", "fits", "against", "position", "layer", "head")
    target = {key: value for key in options if (value := getattr(request, key)) is not None}
    with SEED_LOCK:
        explanation = run.explain(given, request.method, **target)
    other = explanation.against
    return response_types.ExplainResponse(
        model=name,
        target=explanation.output,
        score=round(explanation.score, DIGITS),
        tokens=explanation.features,
        attributions=round_values(explanation.attributions),
        alternative=None if other is None else other.output,
        alternative_score=None if other is None else round(other.score, DIGITS),
        alternative_attributions=None if other is None else round_values(other.attributions),
        unavailable=explanation.unavailable,
        faithfulness=round_values(explanation.faithfulness),
        permutation_effect=None if explanation.permutation_effect is None else round_values(explanation.permutation_effect),
        attention=explanation.shown,
        unit=explanation.wording.unit,
        best=explanation.verdict.best,
        verdict=explanation.verdict.headline,
        summary=explanation.summary(),
        grid=None if explanation.image is None else list(explanation.image.grid),
        image=None if explanation.image is None else png_base64(explanation.image.pixels),
    )
