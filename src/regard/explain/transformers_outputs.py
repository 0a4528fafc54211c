"""Outputs of the models that transformers opens: next and masked tokens, words they write, labels, and similarities."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from regard.corpus.examples import Examples, ImageExamples
from regard.errors import UserError
from regard.explain.attention_graph import attention_graph, determining_attention
from regard.explain.image_outputs import explain_similarity, patch_names
from regard.explain.selection import (
    PUNCTUATION,
    ExplainedImage,
    ExplainedOutput,
    OutputSelection,
    explain_label,
    label_index,
    pick,
    predict_word,
    with_predicted_output,
    word_alternative,
    word_index,
)
from regard.explain.target import ImageTarget, ImageTextTarget, TextTarget, patch_indices
from regard.explain.token_outputs import (
    describe_mask,
    explain_token,
    feature_labels,
    last_part,
    mask_word,
    predict_at_masks,
    repeat_mask,
    text_before,
)
from regard.explain.transformers_targets import explained_model, named_inputs
from regard.tasks.masked import MASK_PATTERN
from regard.tasks.shared.images import ImageInput
from regard.tasks.transformers_models import TransformersRun

EQUAL_GRID = (7, 7)
"""The parts of an image that explain a model without patches that it attends to."""
MAX_PREFIX_TOKENS = 16
"""Class, distillation and register tokens before the patches."""
Target = TypeVar("Target", TextTarget, ImageTarget)


def next_token_output(run: TransformersRun, text: str, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but=("word", "position"), cure="use --word, --position")
    text, description = text_before(text, selection.position)
    inputs, suffix = run._text_inputs(text), len(run._special_tokens.suffix)
    if suffix and tuple(inputs["input_ids"][0, -suffix:].tolist()) == run._special_tokens.suffix:
        inputs = {name: part[:, :-suffix] for name, part in inputs.items()}  # the text goes on
    positions, step = run._text_positions(inputs), inputs["input_ids"].size(1) - 1

    def predict(tokens: Sequence[int]) -> TextTarget:
        target = text_target(run, append_tokens(inputs, tokens[:-1]), "target", positions, step, tokens[0])
        return replace(target, further=tuple((step + number, token) for number, token in enumerate(tokens[1:], 1)))

    return explain_token(predict, run.tokenizers[0], text, description, selection)


def append_tokens(inputs: dict[str, Tensor], tokens: Sequence[int]) -> dict[str, Tensor]:
    """Return the inputs of a text with further tokens at its end; what else there is for each token is that of the last one."""
    ids = inputs["input_ids"]
    more = torch.tensor([list(tokens)], dtype=ids.dtype, device=ids.device)
    return {
        name: torch.cat([part, more if name == "input_ids" else part[:, -1:].expand(-1, len(tokens))], dim=1)
        if part.shape == ids.shape
        else part
        for name, part in inputs.items()
    }


def masked_token_output(run: TransformersRun, text: str, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but=("word", "position"), cure="use --word, --position")
    text, before = mask_word(text, selection.position)
    number = len(MASK_PATTERN.findall(before))

    def predict(tokens: Sequence[int]) -> TextTarget:
        inputs = run._text_inputs(repeat_mask(text, before, len(tokens)))
        masks = torch.nonzero(inputs["input_ids"][0] == run._parts.tokenizer.mask_token_id).flatten().tolist()
        if len(masks) < number + len(tokens):
            raise UserError(f"{run.folder}: its tokenizer has no mask token; its words are not explained")
        positions = [position for position in run._text_positions(inputs) if position not in masks]
        return predict_at_masks(text_target(run, inputs, "source", positions, None), masks[number:], tokens)

    description = describe_mask(number, len(MASK_PATTERN.findall(text)))
    return explain_token(predict, run.tokenizers[0], last_part(before), description, selection)


def label_output(run: TransformersRun, text: str, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    output = -1 if selection.label is None else label_index("class", selection.label, run.labels)
    inputs = run._text_inputs(text)
    target = with_predicted_output(text_target(run, inputs, "source", run._text_positions(inputs), None, output))
    target = with_pooled_positions(target)
    return explain_label(target, feature_labels(target, run.tokenizers[0]), run.labels, selection)


def written_word_output(
    run: TransformersRun, text: str, selection: OutputSelection, example: int | None = None
) -> ExplainedOutput:
    """Return a word that an encoder–decoder writes; for an example of a set, a random one."""
    selection.refuse(run, but="word", cure="use --word")
    inputs, tokenizer = run._text_inputs(text), run.tokenizers[0]
    written = run._write_output(inputs)[0].tolist()
    steps = [step for step, token in enumerate(written[1:]) if token not in tokenizer.special_ids]
    tokens = [written[step + 1] for step in steps]
    words, word_ids = tokenizer.decode([tokens])[0].split(), tokenizer.word_ids(tokens)
    present = [word for word in dict.fromkeys(word_ids) if 0 <= word < len(words)]
    chosen = pick(present, example) if present and example is not None else word_index(selection.word, words, "output")
    if chosen not in word_ids:
        raise UserError(f"--word {selection.word}: the output has no token of it: {' '.join(words)!r}")
    step, before = steps[word_ids.index(chosen)], written[: steps[word_ids.index(chosen)] + 1]
    inputs["decoder_input_ids"] = torch.tensor([before])
    target = text_target(run, inputs, "source", run._text_positions(inputs), step)
    target = predict_word(target, "target", before, written[step + 1 : step + 1 + word_ids.count(chosen)])
    return ExplainedOutput(
        target,
        feature_labels(target, tokenizer),
        f"the word {words[chosen]!r}, {chosen + 1} of {len(words)} in {' '.join(words)!r}",
        against=word_alternative(selection.against, target, before, tokenizer),
    )


def image_label_output(run: TransformersRun, image: ImageInput, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    output = -1 if selection.label is None else label_index("class", selection.label, run.labels)
    target, shown = image_target(run, image, ImageTarget, {}, output)
    return explain_label(target, patch_names(shown), run.labels, selection, shown)


def similarity_output(run: TransformersRun, image: ImageInput, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but="text", cure="use --text with a text to compare the image with")
    texts = [text for text in (selection.fits, selection.against) if text is not None]
    if selection.fits is None:
        raise UserError(f"which text? {run.folder} {run.task.does}; add --text 'a red circle'")
    if not all(text.strip() for text in texts):
        raise UserError("an image has no similarity to an empty text; describe what it might show")
    fixed_length = run.model.config.model_type.startswith("siglip")  # trained on texts that are padded to one length
    encoded = run._parts.tokenizer(texts, padding="max_length" if fixed_length else True, return_tensors="pt")
    names = {"input_ids", "attention_mask"} & encoded.keys()
    target, shown = image_target(run, image, ImageTextTarget, {name: encoded[name].to(run.device) for name in names}, 0)
    return explain_similarity(target, shown, selection)


def text_target(
    run: TransformersRun, inputs: dict[str, Tensor], input_name: str, positions: Sequence[int], step: int | None, output: int = -1
) -> TextTarget:
    """Return a target with the tokens at some positions as features. An output of -1 is not set yet."""
    if not positions:
        raise UserError("there is nothing to explain in an empty text")
    return TextTarget(
        explained_model(run),
        named_inputs(run, inputs),
        input_name,
        torch.tensor(list(positions), device=run.device),
        output,
        replacement_token(run),
        step,
        keys=inputs["input_ids"].size(1),
    )


def replacement_token(run: TransformersRun) -> int:
    """Return the token that replaces a masked one: mask, unknown, padding or end, whichever the vocabulary has first.

    A decoder that classifies reads its label from the last token that is not padding: there it is another one, or a full stop."""
    tokenizer, names = run._parts.tokenizer, ("mask_token_id", "unk_token_id", "pad_token_id", "eos_token_id")
    padding = run.model.config.get_text_config().pad_token_id if run.task.explains == "label" else None
    found = [token for name in names if (token := getattr(tokenizer, name)) is not None and token != padding]
    found += run.tokenizers[0].encode(["."])[0]
    if not found:
        raise UserError("the vocabulary has no mask, unknown, padding or end token that could replace a masked one")
    return int(found[0])


def image_target(
    run: TransformersRun, image: ImageInput, kind: type[ImageTarget], others: dict[str, Tensor], output: int
) -> tuple[ImageTarget, ExplainedImage]:
    """Return a target with the patches of an image as features, or equal parts of it if the model has none, and the image."""
    pixels = run._image_inputs(image)["pixel_values"].to(run.device)  # (1, 3, H, W)
    size = (pixels.size(-2), pixels.size(-1))

    def build(grid: tuple[int, int], offset: int, keys: int | None) -> ImageTarget:
        return kind(
            explained_model(run),
            {"pixels": pixels, **others},
            "pixels",
            torch.arange(grid[0] * grid[1], device=run.device) + offset,
            output,
            pixels[0].mean((1, 2)),
            keys=keys,
            patch_of_pixel=patch_indices(size, grid),
        )

    grid, shown = patch_grid(run, pixels), run._images.decode([image])[0]
    target = with_predicted_output(build(grid or EQUAL_GRID, 0, None))
    keys, output = attended_positions(target), target.output
    prefix = -1 if keys is None or grid is None else keys - grid[0] * grid[1]
    if grid is not None and 0 <= prefix <= MAX_PREFIX_TOKENS:
        target = with_pooled_positions(build(grid, prefix, keys))
        return target, ExplainedImage(shown, grid)
    return build(EQUAL_GRID, 0, 0), ExplainedImage(shown, EQUAL_GRID)


def patch_grid(run: TransformersRun, pixels: Tensor) -> tuple[int, int] | None:
    """Return the rows and columns of the model's patches; None if it has none of one size."""
    try:
        patches = cast(dict[str, list[int]], run._patches(pixels))["patches"]
    except UserError:
        return None
    return patches[0], patches[1]


def attended_positions(target: ImageTarget) -> int | None:
    """Return the number of keys of the last attention, None if the model has none over the whole image."""
    try:
        return attention_graph(target).last.weights.size(-1)
    except UserError:
        return None


def with_pooled_positions(target: Target) -> Target:
    """Return the target with the positions that its label is predicted from, where the model has attention that tells."""
    try:
        pattern, positions = determining_attention(target)
    except UserError:
        return target
    return replace(target, attention_pattern=pattern, pooled=positions)


OUTPUTS: dict[str, Callable[..., ExplainedOutput]] = {
    "label": label_output,
    "translation": written_word_output,
    "next_token": next_token_output,
    "masked_token": masked_token_output,
    "image_label": image_label_output,
    "similarity": similarity_output,
}
"""By what the task explains: (run, text or image, selection) -> output."""


def example_outputs(
    run: TransformersRun, examples: Examples, chosen: Sequence[int], selection: OutputSelection, *, actual: bool = False
) -> Iterator[ExplainedOutput]:
    """Yield one output for each chosen text or image: the prediction; of the words that a model writes or predicts, one.

    With `actual`, the word that is there is explained, where there is one."""
    kind = str(run.task.explains)
    if isinstance(examples, ImageExamples) != ("image" in run.task.reads):
        raise UserError(f"{examples.name}: {run.folder} {run.task.does}; give it {' or '.join(run.task.reads)}s")
    for index in chosen:
        if isinstance(examples, ImageExamples):
            if kind == "similarity" and not examples.captions:
                raise UserError(f"{examples.name} has no captions to compare its images with")
            fits = examples.captions[index][0] if kind == "similarity" else None
            output = OUTPUTS[kind](run, examples.images[index], replace(selection, fits=fits))
        else:
            text = examples.texts()[0][index]
            words, options = text.split(), selection
            if kind in ("next_token", "masked_token"):
                if len(words) < 2:
                    continue
                word = len(words) - 1 if run.task.decoder_only else pick(range(len(words)), index)
                there = words[word].strip(PUNCTUATION) or words[word]
                options = replace(selection, position=str(word + 1), word=there if actual else None)
            example = {"example": index} if kind == "translation" else {}
            output = OUTPUTS[kind](run, text, options, **example)
        if not output.is_compared_with_itself:
            yield output
