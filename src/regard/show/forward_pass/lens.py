"""The logit lens: what each layer would say at each position, if it were the last (nostalgebraist 2020, "interpreting GPT: the
logit lens").

The state of a position after a layer goes through the model's own final norm and output layer, as the state of the last layer
does. Belrose et al. 2023 ("Eliciting latent predictions from transformers with the tuned lens") show where this misleads: an
early layer need not write in the basis that the output layer reads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import UserError
from regard.layers.stack import Stack
from regard.show.figures.labels import clean, shorten
from regard.show.figures.lens_grid import LensCell, LogitLens, lens_figure, lens_page, lens_text
from regard.show.forward_pass.transformers_states import lens_logits, predicts_tokens
from regard.show.inline import InlineFigure
from regard.show.recording import ModelInputs, model_inputs
from regard.show.selection import ViewSelection, pluralize
from regard.show.token_choice import choose_token
from regard.tasks.base import Run
from regard.tasks.transformers_models import TransformersRun

NUM_CANDIDATES = 10
"""Tokens that are kept of each distribution."""


def show_lens(run: Run, text: str, selection: ViewSelection | None = None) -> InlineFigure:
    """Draw the logit lens of a run that reads a text; `data` of the figure is the LogitLens."""
    lens = logit_lens(run, text)
    token = selection.token if selection is not None else None
    first = 0 if token is None else choose_token(lens.reads, token).place
    title = shorten(clean(text), 90)
    return InlineFigure(
        f"logit lens: {pluralize(len(lens.layers) - 1, 'layer')}, {pluralize(len(lens.reads), 'position')}",
        lambda: lens_figure(lens, title=title, first=first),
        text=lambda: lens_text(lens),
        page=lambda: lens_page(lens, title=title),
        title=title,
        data=lens,
    )


def logit_lens(run: Run, text: str) -> LogitLens:
    """Return the most probable tokens that each layer predicts at each position of a text; of a translator, of its output."""
    inputs = lens_inputs(run, text)
    log_probs = lens_log_probs(run, inputs)
    answers = log_probs[-1].argmax(-1)  # (T,) the model's own
    tokenizer = run.tokenizers[-1]
    reads, targets = lens_labels(inputs)
    names = ["embeddings", *(f"layer {layer}" for layer in range(1, len(log_probs)))]
    return LogitLens(
        reads,
        targets,
        tokenizer.labels(answers.tolist()),
        names,
        [[lens_cell(p, int(answer), tokenizer) for p, answer in zip(layer, answers)] for layer in log_probs],
    )


def has_lens(run: Run) -> bool:
    """Return whether a run's model predicts tokens from the output of a stack of layers."""
    return predicts_tokens(run) if isinstance(run, TransformersRun) else hasattr(run.model, "output_stack")


def lens_inputs(run: Run, text: str) -> ModelInputs:
    """Return the inputs of a model that has a lens."""
    if not has_lens(run):
        raise UserError(
            f"--view lens: {run.folder} {run.task.does}; the logit lens is for Transformers that predict tokens: language "
            "models, masked language models and translators"
        )
    return model_inputs(run, text)


@torch.no_grad()
def lens_log_probs(run: Run, inputs: ModelInputs) -> Tensor:
    """Return the log-probabilities (layers + 1, T, V) of each layer, on the CPU; 0 is the embeddings, the last is the model's."""
    if isinstance(run, TransformersRun):
        return lens_logits(run, inputs.inputs).float().log_softmax(-1).cpu()
    model, stack = run.model, run.model.output_stack
    with record_states(stack) as states:
        run._forward(inputs.inputs)
    return torch.stack([model.logits(stack.norm(state))[0].float().log_softmax(-1).cpu() for state in states])


@contextmanager
def record_states(stack: Stack) -> Iterator[list[Tensor]]:
    """Record inside the block the residual stream (B, T, D): what enters the first layer, what leaves each, and last what the
    final norm reads."""
    states: list[Tensor] = []
    blocks = list(stack.layers())

    def before(module: Any, given: tuple[Tensor, ...]) -> None:
        states.append(given[0])

    def after(module: Any, given: Any, output: Tensor) -> None:
        states.append(output)

    hooks = [blocks[0].register_forward_pre_hook(before)]
    hooks += [block.register_forward_hook(after) for block in blocks[:-1]]
    hooks.append(stack.norm.register_forward_pre_hook(before))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def lens_labels(inputs: ModelInputs) -> tuple[list[str], list[str]]:
    """Return the token that each position reads, and the one that follows it in the text, where there is one to predict."""
    tokens: Any = inputs.tokens
    if inputs.is_encoder_decoder:
        return tokens["target"][0], tokens["predicted"][0]
    reads = tokens["text"][0]
    return reads, [*reads[1:], ""] if inputs.run.task.decoder_only else list(reads)


def lens_cell(log_p: Tensor, answer: int, tokenizer: Any) -> LensCell:
    """Return what is kept of one distribution (V,)."""
    best = log_p.topk(min(NUM_CANDIDATES, len(log_p)))
    p = log_p.exp()
    entropy = float(-(p * log_p.clamp(min=-1e4)).sum())
    return LensCell(
        list(zip(tokenizer.labels(best.indices.tolist()), np.exp(best.values.tolist()).tolist())),
        float(p[answer]),
        int((log_p > log_p[answer]).sum()) + 1,
        entropy,
        answer == int(best.indices[0]),
    )
