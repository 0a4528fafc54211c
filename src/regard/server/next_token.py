"""The distribution of the next token, in a form to which a client can apply a temperature, top-k and top-p."""

import torch

from regard.server.response_types import NextTokenResponse
from regard.tasks.language import LanguageRun

GROUPS = 64
"""Of the tokens that are not named, by their log-probability."""


@torch.no_grad()
def next_token_response(name: str, run: LanguageRun, text: str, number: int) -> NextTokenResponse:
    """Return the `number` most probable tokens after a text, and groups of the rest."""
    inputs = {side: ids.to(run.device) for side, ids in run._inputs(text).items()}
    log_probabilities = run._forward(inputs)[0, -1].float().log_softmax(-1).cpu()  # (V,)
    values, tokens = log_probabilities.sort(descending=True)
    chunks = values[number:].chunk(GROUPS) if len(values) > number else ()
    return NextTokenResponse(
        model=name,
        tokens=run.tokenizers[0].labels(tokens[:number].tolist()),
        log_probabilities=[round(value, 4) for value in values[:number].tolist()],
        rest=[[round(float(chunk.mean()), 4), len(chunk)] for chunk in chunks],
    )
