"""Draw how a run generates: each token with its probability, the alternatives, and what it attends to."""

from collections.abc import Sequence

import torch

from regard.errors import UserError
from regard.show.figures.decoding_steps import (
    GenerationStep,
    GenerationTrace,
    generation_figure,
    generation_page,
    generation_text,
)
from regard.show.figures.labels import clean, shorten
from regard.show.inline import InlineFigure
from regard.show.recording import (
    BUDGET,
    ModelInputs,
    attention_maps,
    group_layers,
    model_inputs,
    query_and_key_labels,
    require_attention,
)
from regard.show.selection import ATTENTION_KINDS, ViewSelection, pluralize, select
from regard.show.token_choice import choose_token
from regard.tasks.base import Run, TokensBySide
from regard.tasks.language import LanguageRun

MAX_TOKENS, MAX_ALTERNATIVES = 20, 5


def show_generation(run: Run, text: str, selection: ViewSelection, *, max_tokens: int | None = None) -> InlineFigure:
    """Let a run generate, and draw its steps."""
    trace = trace_generation(run, text, selection, max_tokens)
    words = [step.word for step in trace.steps]
    first, note = (0, "") if selection.token is None else choose_token(words, selection.token)
    title = shorten(clean(text), 90)
    return InlineFigure(
        f"{trace.name}: {pluralize(len(trace.steps), 'step')}" + (f" ({trace.note})" if trace.note else ""),
        lambda: generation_figure(trace, title=title, first=first, absolute=selection.scale == "absolute"),
        text=lambda: generation_text(trace, first),
        page=lambda: generation_page(trace, title=title, first=first, absolute=selection.scale == "absolute"),
        title=title,
        note=note,
    )


def trace_generation(run: Run, text: str, selection: ViewSelection, max_tokens: int | None = None) -> GenerationTrace:
    """Return the generated tokens with the weights of the selected head, or the mean of the heads of a layer."""
    return trace_attention(*generated_inputs(run, text, max_tokens), selection)


def trace_tokens(run: LanguageRun, prompt: str, tokens: Sequence[int], selection: ViewSelection) -> GenerationTrace:
    """Return the same for tokens that were generated after a prompt in any way."""
    require_attention(run)
    if not tokens:
        raise UserError("nothing was generated: there is nothing to show")
    return trace_attention(*inputs_with_continuation(run, run._encode_prompts([prompt])[0], list(tokens)), selection)


def trace_attention(
    inputs: ModelInputs, generated: list[int], rows: list[int] | None, selection: ViewSelection
) -> GenerationTrace:
    """Run the model on inputs whose rows (None is all) predict the generated tokens."""
    run = inputs.run
    logits, seen = inputs.watch(budget=BUDGET, keep="top", rows=rows)
    record = inputs.to_record(seen)
    group, selected = select(
        attention_maps(record), ViewSelection(kind=selection.kind, layer=selection.layer, head=selection.head)
    )
    if selected.maps.name == ATTENTION_KINDS["encoder"]:
        raise UserError(f"--kind {selection.kind}: the encoder generates no tokens; use cross or decoder")
    module = list(group_layers(record).values())[group][selected.shown_layer]
    keys = query_and_key_labels(module, record.tokens, 0)[1]
    weights = module.weights()[0][:, : len(generated), : len(keys)]  # (H, T, S)
    p = (logits[0] if rows is None else logits[0, rows]).float().softmax(-1).cpu()  # (T, V)
    before = [inputs.last_of_prompt, *generated]
    words = run.tokenizers[-1].labels(generated, inputs.last_of_prompt)
    steps = [
        GenerationStep(words[i], float(p[i, token]), alternatives(run, p[i], token, before[i]))
        for i, token in enumerate(generated)
    ]
    return GenerationTrace(
        f"{selected.layer_name}, {selected.head_name}",
        keys,
        steps,
        weights.mean(0) if selected.head is None else weights[selected.head],
        None if module.kind == "cross" else 1 + (0 if rows is None else rows[0]),
        module.dropped and f"without {module.dropped}",
    )


def alternatives(run: Run, p: torch.Tensor, generated: int, before: int | None) -> list[tuple[str, float]]:
    """Return the most probable tokens besides the generated one, after the token before it."""
    top = p.topk(min(MAX_ALTERNATIVES + 1, len(p))).indices.tolist()
    best = [token for token in top if token != generated][:MAX_ALTERNATIVES]
    return [(run.tokenizers[-1].labels([token], before)[0], float(p[token])) for token in best]


def generated_inputs(run: Run, text: str, max_tokens: int | None) -> tuple[ModelInputs, list[int], list[int] | None]:
    """Return the inputs after generation, the generated tokens, and the rows that predict them, None if all."""
    if run.task.decoder_only:
        require_attention(run)
        return inputs_with_continuation(run, *run._continue(text, max_tokens or MAX_TOKENS))
    if max_tokens is not None:
        raise UserError(f"--max-tokens {max_tokens}: for language models; {run.folder} {run.task.does}")
    inputs = model_inputs(run, text)
    if "predicted" not in inputs.tokens:
        raise UserError(f"{run.folder} {run.task.does}; --view steps is for runs that generate token by token")
    return inputs, run._predicted(inputs.inputs), None


def inputs_with_continuation(run: Run, prompt: list[int], generated: list[int]) -> tuple[ModelInputs, list[int], list[int]]:
    """Return the inputs when the last token was generated."""
    ids = [*prompt, *generated[:-1]]
    tokens: TokensBySide = {
        "text": [run.tokenizers[0].labels(ids)],
        "predicted": [run.tokenizers[0].labels(generated, prompt[-1])],
    }
    inputs = ModelInputs(run, run._causal_inputs(ids), tokens, False, prompt[-1])
    return inputs, generated, list(range(len(prompt) - 1, len(ids)))
