"""Build responses from what runs return: round numbers, encode images as PNG in base64. Called in a model's thread."""

import base64
import json
import tempfile
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from regard.errors import UserError
from regard.explain.report import round_values
from regard.server import request_types, response_types
from regard.show.attention import show_attention
from regard.show.beam import build_beam_tree, show_beam_tree
from regard.show.figures.attention_maps import sharpest_layer
from regard.show.generation import trace_tokens
from regard.show.image_attention import show_image_attention
from regard.show.recording import attention_maps, record_attention, token_labels
from regard.show.selection import ViewSelection, resolve_indices, select_group
from regard.tasks.contrastive import PlainText
from regard.tasks.shared.images import patch_grid

DIGITS = 6
MAX_WEIGHTS = 1_000_000
"""Numbers in one response."""
SEED_LOCK = threading.Lock()
"""Explanations build a randomly initialised model from torch's global seed, which all threads share."""
NO_TASKS = "task: this model has no other tasks; leave it out"


def mark_as_text(run: Any, text: str) -> str:
    """Mark a text so that a run that also reads images never takes it for a path."""
    return PlainText(text) if run.task.explains == "similarity" else text


def add_task_prefix(run: Any, texts: list[str], task: str | None) -> list[str]:
    if task is None:
        return texts
    if run.task.name != "text-to-text":
        raise UserError(NO_TASKS)
    return run._prefixed(texts, task)


def indices_of_nonempty(texts: Sequence[str]) -> list[int]:
    """Return each text's index among the non-empty ones, which selects its random stream."""
    counts = np.cumsum([0, *(bool(text.strip()) for text in texts)])
    return counts[:-1].tolist()


def label_probabilities(predictions: Sequence[Any]) -> list[response_types.LabelProbability]:
    return [response_types.LabelProbability(label=one.label, probability=round(one.probability, DIGITS)) for one in predictions]


def hypothesis_results(hypotheses: Sequence[Any]) -> list[response_types.HypothesisResult]:
    return [
        response_types.HypothesisResult(text=one.text, score=one.score, log_probability=one.log_probability) for one in hypotheses
    ]


def png_base64(pixels: np.ndarray) -> str:
    buffer = BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


# decoded texts


def translation_result(run: Any, hypotheses: Sequence[Any], views: dict[str, Any]) -> response_types.TranslationResult:
    best = hypotheses[0]
    return response_types.TranslationResult(
        text=best.text,
        score=best.score,
        log_probability=best.log_probability,
        tokens=token_labels(run.tokenizers[1], best.tokens),
        alternatives=hypothesis_results(hypotheses[1:]),
        **views,
    )


def translation_views(
    run: Any, texts: Sequence[str], translations: Sequence[Any], request: request_types.TranslateRequest
) -> list[dict[str, Any]]:
    """Return the alignment and the beam tree of each translation, where the request asks for them."""
    views: list[dict[str, Any]] = [{} for _ in texts]
    nonempty = [i for i, hypotheses in enumerate(translations) if hypotheses[0].tokens]
    if request.alignment and nonempty:
        alignments = run._align_translations([texts[i] for i in nonempty], [translations[i][0] for i in nonempty])
        for i, alignment in zip(nonempty, alignments):
            weights, name = alignment.view()
            views[i]["alignment"] = response_types.AlignmentResult(
                source=alignment.source, target=alignment.target, weights=np.round(weights, 4).tolist(), name=name
            )
    if request.beam_tree:
        decode = run.recipe.decode
        beam = max(2, request.beam or decode.beam)
        length_penalty = decode.length_penalty if request.length_penalty is None else request.length_penalty
        for i in nonempty:
            nodes, _ = build_beam_tree(run, texts[i], beam, length_penalty, request.max_tokens)
            views[i]["beam_tree"] = [beam_node(node) for node in nodes]
    return views


def beam_node(node: Any) -> response_types.BeamTreeNode:
    return response_types.BeamTreeNode(
        parent=node.parent,
        step=node.step,
        token=node.word,
        on_best_path=node.best,
        log_probability=round(node.log_p, 4),
        status=node.fate,
        score=None if node.score is None else round(node.score, 4),
    )


def generation_result(generated: Any, attention: response_types.GenerationAttention | None) -> response_types.GenerationResult:
    return response_types.GenerationResult(
        text=generated.text.text,
        continuation=generated.text.continuation,
        score=generated.text.score,
        tokens=generated.words,
        probabilities=[round(p, DIGITS) for p in generated.probabilities],
        finish_reason="length" if generated.cut else "stop",
        attention=attention,
    )


def generation_attentions(
    run: Any, prompts: Sequence[str], generated: Sequence[Any], request: request_types.GenerateRequest
) -> list[response_types.GenerationAttention | None]:
    selection = ViewSelection("steps", request.kind, request.layer, request.head)
    return [
        generation_attention(trace_tokens(run, prompt, one.text.tokens, selection)) if one.text.tokens else None
        for prompt, one in zip(prompts, generated)
    ]


def generation_attention(trace: Any) -> response_types.GenerationAttention:
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
    run: Any, hypotheses: Sequence[Any], attention: response_types.CaptionAttention | None
) -> response_types.CaptionResult:
    best = hypotheses[0]
    return response_types.CaptionResult(
        text=best.text,
        score=best.score,
        log_probability=best.log_probability,
        tokens=token_labels(run.tokenizers[0], best.tokens),
        alternatives=hypothesis_results(hypotheses[1:]),
        attention=attention,
    )


def caption_attention(run: Any, image: Image.Image, caption: Any) -> response_types.CaptionAttention | None:
    if not caption.tokens:
        return None
    pixels = run._images.decode([image])
    (attention,) = run._align_tokens(pixels, [caption.tokens])
    return response_types.CaptionAttention(
        words=attention.words,
        grid=list(run.model.grid),
        maps=np.round(attention.weights, 4).tolist(),
        name="cross-attention, mean over the heads of the sharpest layer",
        image=png_base64(pixels[0]),
    )


# labels and vectors


def classify_inputs(run: Any, inputs: Sequence[Any], task: str | None) -> list[Any]:
    if task is not None and run.task.name != "text-to-text":
        raise UserError(NO_TASKS)
    return run.classify(inputs, task) if task is not None else run.classify(inputs)


def embed_inputs(run: Any, inputs: Sequence[Any], layer: int, pool: str) -> list[response_types.EmbeddingResult]:
    is_text = isinstance(inputs[0], str)
    options = {"read_as": "text" if is_text else "image"} if run.task.explains == "similarity" else {}
    embeddings = run.embed(inputs, layer=layer, pool=pool, **options)
    return [
        response_types.EmbeddingResult(
            tokens=one.tokens if pool == "words" or is_text else [],
            vectors=np.round(one.vectors.astype(float), DIGITS).tolist(),
        )
        for one in embeddings
    ]


# attention and explanations


def attention_json(name: str, run: Any, given: Any, request: request_types.AttentionRequest) -> bytes:
    groups = attention_maps(record_attention(run, given))
    group = groups[select_group(groups, request.kind)]
    layers = [index_of(group, "layer", number) for number in request.layers] if request.layers else list(range(len(group.layers)))
    heads = [index_of(group, "head", number) for number in request.heads] if request.heads else list(range(len(group.heads)))
    weights = group.weights[np.ix_(layers, heads)]  # (L, H, T, S)
    if weights.size > MAX_WEIGHTS:
        raise UserError(f"{weights.size:,} weights are more than {MAX_WEIGHTS:,}; ask for fewer layers or heads")
    is_image = "image" in run.task.reads and not isinstance(given, str)
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
        grid=list(patch_grid(run)) if is_image else None,
        image=png_base64(resize_image(run, given)) if is_image else None,
    )
    return json.dumps(response.model_dump(), ensure_ascii=False, allow_nan=False).encode()


def index_of(group: Any, axis: Literal["layer", "head"], number: int) -> int:
    """Return the index of a layer or head by its number."""
    selection = ViewSelection("model", layer=number) if axis == "layer" else ViewSelection("model", head=number)
    index = getattr(resolve_indices(group, selection), axis)
    assert index is not None
    return index


def resize_image(run: Any, image: Image.Image) -> np.ndarray:
    """Return an image at the size that the model reads."""
    return run._images.transform.apply(image.convert("RGB"))


def attention_file(run: Any, given: Any, request: request_types.AttentionRequest) -> bytes:
    """Return a recording of all attention (.attn), or one view as a figure."""
    layer, head = (None if not numbers else numbers[0] for numbers in (request.layers, request.heads))
    if layer is None and head is not None:
        layer = 1
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        out = Path(folder, f"attention.{request.format}")
        if request.format == "attn":
            record_attention(run, given).write(out)
        elif request.view == "beam":
            if run.task.explains != "translation":
                raise UserError("view beam: needs a model that translates")
            show_beam_tree(run, given, out=out)
        else:
            selection = ViewSelection(request.view, request.kind, layer, head, request.token)
            if isinstance(given, str):
                show_attention(run, given, selection, out=out)
            else:
                show_image_attention(run, given, selection, out)
        return out.read_bytes()


def explain_response(name: str, run: Any, given: Any, request: request_types.ExplainRequest) -> response_types.ExplainResponse:
    target = {key: value for key in ("label", "word", "fits", "against") if (value := getattr(request, key)) is not None}
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
        summary=explanation.summary(),
        grid=None if explanation.image is None else list(explanation.image.grid),
        image=None if explanation.image is None else png_base64(explanation.image.pixels),
    )


def count_tokens(run: Any, texts: Sequence[str]) -> int:
    return sum(map(len, run.tokenizers[0].encode([str(text) for text in texts])))
