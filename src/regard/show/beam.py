"""Draw the tree of a beam search."""

import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.decoding.batching import output_limit
from regard.decoding.beam import BeamCandidates, beam_search
from regard.decoding.protocol import length_penalty
from regard.errors import UserError
from regard.show.figures.beam_tree import ENDED, KEPT, PRUNED, BeamNode, beam_tree_figure, beam_tree_text
from regard.show.inline import InlineFigure
from regard.tasks.translate import TranslateRun

MAX_NODES = 400


def show_beam_tree(run: TranslateRun, text: str) -> InlineFigure:
    """Translate a text with the recipe's beam, at least 2, and draw the search tree. It is described by the translation."""
    beam, alpha = max(2, run.recipe.decode.beam), run.recipe.decode.length_penalty
    nodes, translation = build_beam_tree(run, text, beam, alpha)
    note = (
        f"beam {beam}: log-probability of each hypothesis; of ended ones = log-probability / ((5 + length) / 6)^{alpha:g}; "
        "dashed: pruned"
    )
    return InlineFigure(
        translation,
        lambda: beam_tree_figure(nodes, title=translation, note=note),
        text=lambda: beam_tree_text(nodes),
        title=translation,
    )


def build_beam_tree(
    run: TranslateRun, text: str, beam: int, alpha: float, max_tokens: int | None = None
) -> tuple[list[BeamNode], str]:
    """Search with a beam; return the nodes of its tree, and the translation."""
    (ids,) = run._ids([text])
    if not ids:
        raise UserError("there is nothing to show in an empty sentence")
    inputs = {name: part.to(run.device) for name, part in encoder_inputs(Ragged.from_rows([ids]), run._special_tokens).items()}
    limit = output_limit(int(inputs["lengths"][0]), run.recipe.model.max_length, max_tokens or run.recipe.decode.max_tokens)
    steps: list[BeamCandidates] = []
    ((found,),) = beam_search(
        run.model,
        (inputs["source"], inputs["lengths"]),
        torch.tensor([limit], device=run.device),
        beam=beam,
        alpha=alpha,
        special_tokens=run._special_tokens,
        on_step=steps.append,
    )
    nodes = tree_nodes(run, steps, found.tokens, alpha)
    if len(nodes) > MAX_NODES:
        raise UserError(f"the tree has {len(nodes)} nodes, more than {MAX_NODES}; use a shorter sentence")
    return nodes, run._translations([found])[0].text


def tree_nodes(run: TranslateRun, steps: list[BeamCandidates], output: list[int], alpha: float) -> list[BeamNode]:
    """Return the considered continuations of every step: the kept ones, and as many pruned ones."""
    nodes: list[BeamNode] = []
    beams: list[tuple[int, list[int]] | None] = [(-1, [])]  # the node and the tokens of each hypothesis in the beam
    best = [*output, run._special_tokens.eos]
    for number, step in enumerate(steps, start=1):
        kept, extended = step.kept[0].tolist(), dict[int, tuple[int, list[int]]]()
        candidates = zip(step.origin[0].tolist(), step.tokens[0].tolist(), step.log_p[0].tolist())
        for index, (origin, token, log_p) in enumerate(candidates):
            before = beams[origin] if origin < len(beams) else None
            if log_p == -torch.inf or before is None:
                continue
            parent, tokens = before[0], [*before[1], token]
            ends = token == run._special_tokens.eos
            fate = ENDED if ends and index < len(kept) else KEPT if not ends and index in kept else PRUNED
            score = log_p / float(length_penalty(number, alpha)) if fate == ENDED else None
            is_best = fate != PRUNED and tokens == best[:number]
            (word,) = run.tokenizers[-1].labels([token], before[1][-1] if before[1] else None)
            nodes.append(BeamNode(parent, number, word, log_p, fate, score, is_best))
            if fate == KEPT:
                extended[index] = len(nodes) - 1, tokens
        beams = [extended.get(index) for index in kept]
    return nodes
