"""Draw how a run writes: each token with its probability, what else it might have been, and what it looked at."""

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.errors import UserError
from regard.show.attention import (
    ATTENTION_KINDS,
    ViewSelection,
    head_label,
    pluralize,
    resolve_indices,
    select_group,
    sharpest_layer,
    token_index,
)
from regard.show.figures.decoding_steps import (
    GenerationStep,
    GenerationTrace,
    generation_figure,
    generation_page,
    generation_text,
)
from regard.show.figures.labels import clean, shorten
from regard.show.figures.style import save_figure, write_file
from regard.show.recording import (
    BUDGET,
    ModelInputs,
    attention_maps,
    group_layers,
    model_inputs,
    query_and_key_labels,
    require_attention,
    token_labels,
)
from regard.tasks.base import Run
from regard.tasks.language import LanguageRun
from regard.tokens.special_tokens import NO_TOKEN

MAX_TOKENS, MAX_ALTERNATIVES = 20, 5


def show_generation(
    run: Run, text: str, choice: ViewSelection, *, max_tokens: int | None = None, out: Path | None = None, terminal: bool = False
) -> str:
    """Let a run write, and draw its steps. In words, what was drawn."""
    found = trace_generation(run, text, choice, max_tokens)
    first = 0 if choice.token is None else token_index([step.word for step in found.steps], choice.token)
    title = shorten(clean(text), 90)
    if out is not None:
        if out.suffix.lower() == ".html":
            write_file(out, generation_page(found, title=title, first=first).encode())
        else:
            save_figure(generation_figure(found, title=title, first=first), out)
    about = f"{found.name}: {pluralize(len(found.steps), 'step')}" + (f" ({found.note})" if found.note else "")
    return about + (f"\n\n{generation_text(found, first)}" if terminal else "")


def trace_generation(run: Run, text: str, choice: ViewSelection, max_tokens: int | None = None) -> GenerationTrace:
    """What is written, token by token, and what the chosen head looked at, or all of the chosen layer, on average."""
    return trace_attention(*generated_inputs(run, text, max_tokens), choice)


def trace_tokens(run: LanguageRun, prompt: str, tokens: Sequence[int], choice: ViewSelection) -> GenerationTrace:
    """The same of what was written after a prompt, however it was chosen."""
    require_attention(run)
    if not tokens:
        raise UserError("nothing was written: there is nothing to show")
    return trace_attention(*inputs_with_continuation(run, run._encode_prompts([prompt])[0], list(tokens)), choice)


def trace_attention(read: ModelInputs, said: list[int], rows: list[int] | None, choice: ViewSelection) -> GenerationTrace:
    run = read.run
    logits, seen = read.watch(budget=BUDGET, keep="top", rows=rows)
    record = read.recorded(seen)
    maps = attention_maps(record)
    number = select_group(maps, choice.kind)
    picked, group = maps[number], list(group_layers(record).values())[number]
    layer, head, _ = resolve_indices(picked, ViewSelection(kind=choice.kind, layer=choice.layer, head=choice.head))
    layer = sharpest_layer(picked) if layer is None else layer
    if picked.name == ATTENTION_KINDS["encoder"]:
        raise UserError(f"--kind {choice.kind}: no token is said there; use cross or decoder")
    place, (_, keys, _) = group[layer], query_and_key_labels(group[layer], record.tokens, 0)
    weights = place.weights()[0][:, : len(said), : len(keys)]  # (H, T, S)
    p = (logits[0] if rows is None else logits[0, rows]).float().softmax(-1).cpu()  # (T, V)
    words = token_labels(run.tokenizers[-1], said)
    return GenerationTrace(
        f"{picked.name}, layer {picked.layers[layer]}, {head_label(picked, head)}",
        keys,
        [GenerationStep(words[i], float(p[i, token]), alternatives(run, p[i], token)) for i, token in enumerate(said)],
        weights.mean(0) if head is None else weights[head],
        None if place.kind == "cross" else 1 + (0 if rows is None else rows[0]),
        place.dropped and f"without {place.dropped}",
    )


def alternatives(run: Run, p: torch.Tensor, said: int) -> list[tuple[str, float]]:
    """The likeliest tokens besides the one that was said."""
    best = [token for token in p.topk(min(MAX_ALTERNATIVES + 1, len(p))).indices.tolist() if token != said][:MAX_ALTERNATIVES]
    return list(zip(token_labels(run.tokenizers[-1], best), p[best].tolist()))


def generated_inputs(run: Run, text: str, max_tokens: int | None) -> tuple[ModelInputs, list[int], list[int] | None]:
    """What a run has read when it has written, the tokens that it said, and where it said them, when not everywhere."""
    if run.task.decoder_only:
        return continued_inputs(run, text, max_tokens or MAX_TOKENS)
    if max_tokens is not None:
        raise UserError(f"--max-tokens {max_tokens}: for language models; {run.folder} {run.task.does}")
    read = model_inputs(run, text)
    if not read.both:
        raise UserError(f"{run.folder} {run.task.does}; --view steps is for runs that write, one token after another")
    return read, [*read.inputs["target"][0, 1:].tolist(), run._special_tokens.eos], None


def continued_inputs(run: LanguageRun, text: str, max_tokens: int) -> tuple[ModelInputs, list[int], list[int]]:
    """From a prompt; its end is said too, where it came by itself."""
    require_attention(run)
    (begun,), (written,) = run._encode_prompts([text]), run.generate([text], max_tokens=max_tokens)
    end, room = run._output_special_tokens().eos, run._output_limit(len(begun), max_tokens)
    return inputs_with_continuation(
        run, begun, [*written.tokens, end] if end != NO_TOKEN and len(written.tokens) < room - 1 else written.tokens
    )


def inputs_with_continuation(run: LanguageRun, begun: list[int], said: list[int]) -> tuple[ModelInputs, list[int], list[int]]:
    """All that was read when the last token was said."""
    ids = [*begun, *said[:-1]]
    tokens = {"text": [token_labels(run.tokenizers[0], ids)], "said": [token_labels(run.tokenizers[0], said)]}
    read = ModelInputs(run, {"target": torch.tensor([ids], device=run.device)}, tokens, False)
    return read, said, list(range(len(begun) - 1, len(ids)))
