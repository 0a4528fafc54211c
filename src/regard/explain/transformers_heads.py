"""The heads of models that transformers opens: what is known about the tokens they attend to, and the loss without them."""

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from regard.errors import UserError
from regard.explain.heads import Relations, patch_relations, token_relations
from regard.explain.selection import ExplainedOutput
from regard.explain.transformers_targets import LogitsModel
from regard.tasks.transformers_models import TransformersRun

Inputs = dict[str, Tensor]


def check_heads_apply(run: TransformersRun) -> None:
    if run.task.explains in (None, "similarity"):
        raise UserError(f"{run.folder} {run.task.does}; --heads is for models that classify, or predict or write words")


def model_inputs(output: ExplainedOutput) -> Inputs:
    """Return the inputs of an output by the model's own names."""
    names = cast(LogitsModel, output.target.model).names
    return {names.get(name, name): part for name, part in output.target.inputs.items()}


def relations_of_outputs(run: TransformersRun, outputs: Sequence[ExplainedOutput]) -> Iterator[tuple[Inputs, Relations]]:
    """Yield the inputs of each output, and the relations between their tokens or patches."""
    for output in outputs:
        inputs = model_inputs(output)
        if output.image is not None:
            prefix = int(output.target.positions[0]) if output.target.keys else 0
            yield inputs, {"target": patch_relations(output.image.grid, prefix)}
            continue
        sides = {"target": inputs["input_ids"]}
        if "decoder_input_ids" in inputs:
            sides = {"source": inputs["input_ids"], "target": inputs["decoder_input_ids"]}
        special, embed = sorted(run._parts.tokenizer.all_special_ids), run.model.get_input_embeddings()
        with torch.no_grad():
            relations = {side: token_relations(ids[0].cpu(), special, embed(ids)[0].cpu()) for side, ids in sides.items()}
        if "source" in relations:
            queries = sides["target"].size(1)
            relations["cross"] = {"separator": relations["source"]["separator"][:1].expand(queries, -1)}
        yield inputs, relations


def output_loss(outputs: Sequence[ExplainedOutput]) -> Callable[[], float]:
    """Return a function that computes the mean negative log-probability of the outputs."""
    return lambda: -float(torch.cat([output.target.full_score() for output in outputs]).mean())
