"""Draw the tree of a beam search."""

from pathlib import Path

import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.decoding.batching import output_limit
from regard.decoding.beam import BeamCandidates, beam_search
from regard.decoding.protocol import length_penalty
from regard.errors import UserError
from regard.show.attention import save_figure_or_page
from regard.show.figures.beam_tree import ENDED, KEPT, PRUNED, BeamNode, beam_tree_figure, beam_tree_text
from regard.show.recording import token_labels
from regard.tasks.translate import TranslateRun

MAX_NODES = 400


def show_beam_tree(run: TranslateRun, text: str, *, out: Path | None = None, terminal: bool = False) -> str:
    """Translate a text with the recipe's beam, at least 2, and draw what was kept and what was not. What was said."""
    beam, alpha = max(2, run.recipe.decode.beam), run.recipe.decode.length_penalty
    nodes, said = build_beam_tree(run, text, beam, alpha)
    if out is not None:
        note = (
            f"beam {beam}: log-probability of each hypothesis; of what ended = that / ((5 + length) / 6)^{alpha:g}; "
            "dashed: not kept"
        )
        save_figure_or_page(beam_tree_figure(nodes, title=said, note=note), out, said)
    return f"{said}\n\n{beam_tree_text(nodes)}" if terminal else said


def build_beam_tree(
    run: TranslateRun, text: str, beam: int, alpha: float, max_tokens: int | None = None
) -> tuple[list[BeamNode], str]:
    """What was kept and what was not, and what was said."""
    (ids,) = run._ids([text])
    if not ids:
        raise UserError("there is nothing to show of an empty sentence")
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
        raise UserError(f"the tree has {len(nodes)} branches, too many to be seen; give a shorter sentence")
    return nodes, run._translations([found])[0].text


def tree_nodes(run: TranslateRun, steps: list[BeamCandidates], output: list[int], alpha: float) -> list[BeamNode]:
    """Every continuation that was considered: of those not kept, as many as were."""
    nodes: list[BeamNode] = []
    alive, ways = [-1], [list[int]()]
    wanted = [*output, run._special_tokens.eos]
    for number, step in enumerate(steps, start=1):
        kept, after = step.kept[0].tolist(), dict[int, tuple[int, list[int]]]()
        beam = len(kept)
        words = token_labels(run.tokenizers[-1], step.tokens[0].tolist())
        each = zip(step.origin[0].tolist(), step.tokens[0].tolist(), step.log_p[0].tolist())
        for place, (origin, token, log_p) in enumerate(each):
            if log_p == -torch.inf or origin >= len(alive) or alive[origin] == -2:
                continue
            ends = token == run._special_tokens.eos
            fate = ENDED if ends and place < beam else KEPT if not ends and place in kept else PRUNED
            way = [*ways[origin], token]
            nodes.append(
                BeamNode(
                    alive[origin],
                    number,
                    words[place],
                    log_p,
                    fate,
                    log_p / float(length_penalty(number, alpha)) if fate == ENDED else None,
                    fate != PRUNED and way == wanted[:number],
                )
            )
            if fate == KEPT:
                after[place] = len(nodes) - 1, way
        alive, ways = (
            [after[place][0] if place in after else -2 for place in kept],
            [after[place][1] if place in after else [] for place in kept],
        )
    return nodes
