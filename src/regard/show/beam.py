"""Draw the tree of a beam search."""

from pathlib import Path

import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import read
from regard.decoding.batching import limit_of
from regard.decoding.beam import Candidates, beam_search
from regard.decoding.protocol import length_penalty
from regard.errors import Mistake
from regard.show.attention import save_any
from regard.show.figures.beam_tree import ENDED, KEPT, PRUNED, Node, tree, tree_text
from regard.show.recording import spelled
from regard.tasks.translate import Translator

MOST_NODES = 400


def show_beam(run: Translator, text: str, *, out: Path | None = None, terminal: bool = False) -> str:
    """Translate a text with the recipe's beam, at least 2, and draw what was kept and what was not. What was said."""
    beam, alpha = max(2, run.recipe.decode.beam), run.recipe.decode.length_penalty
    nodes, said = beam_tree(run, text, beam, alpha)
    if out is not None:
        note = (
            f"beam {beam}: log-probability of each hypothesis; of what ended = that / ((5 + length) / 6)^{alpha:g}; "
            "dashed: not kept"
        )
        save_any(tree(nodes, title=said, note=note), out, said)
    return f"{said}\n\n{tree_text(nodes)}" if terminal else said


def beam_tree(run: Translator, text: str, beam: int, alpha: float, max_tokens: int | None = None) -> tuple[list[Node], str]:
    """What was kept and what was not, and what was said."""
    (ids,) = run.ids([text])
    if not ids:
        raise Mistake("there is nothing to show of an empty sentence")
    inputs = {name: part.to(run.device) for name, part in read(Ragged.of([ids]), run.marks).items()}
    limit = limit_of(int(inputs["lengths"][0]), run.recipe.model.max_length, max_tokens or run.recipe.decode.max_tokens)
    steps: list[Candidates] = []
    ((found,),) = beam_search(
        run.model,
        (inputs["source"], inputs["lengths"]),
        torch.tensor([limit], device=run.device),
        beam=beam,
        alpha=alpha,
        marks=run.marks,
        report=steps.append,
    )
    nodes = grown(run, steps, found.tokens, alpha)
    if len(nodes) > MOST_NODES:
        raise Mistake(f"the tree has {len(nodes)} branches, too many to be seen; give a shorter sentence")
    return nodes, run.translations([found])[0].text


def grown(run: Translator, steps: list[Candidates], output: list[int], alpha: float) -> list[Node]:
    """Every continuation that was considered: of those not kept, as many as were."""
    nodes: list[Node] = []
    alive, ways = [-1], [list[int]()]
    wanted = [*output, run.marks.end]
    for number, step in enumerate(steps, start=1):
        kept, after = step.kept[0].tolist(), dict[int, tuple[int, list[int]]]()
        beam = len(kept)
        words = spelled(run.tokenizers[-1], step.tokens[0].tolist())
        each = zip(step.origin[0].tolist(), step.tokens[0].tolist(), step.log_p[0].tolist())
        for place, (origin, token, log_p) in enumerate(each):
            if log_p == -torch.inf or origin >= len(alive) or alive[origin] == -2:
                continue
            ends = token == run.marks.end
            fate = ENDED if ends and place < beam else KEPT if not ends and place in kept else PRUNED
            way = [*ways[origin], token]
            nodes.append(
                Node(
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
