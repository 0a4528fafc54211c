"""Every view of a run, of a model of transformers, or of a recording, as a figure that displays by itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from torch import nn

from regard.attention.modules import STACK_NAMES
from regard.attention.record import Tokens
from regard.attention.recording import AttentionRecording
from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.explain.antecedents import best_antecedent_head, head_name
from regard.show.attention import show_alignment, show_attention, show_record
from regard.show.beam import show_beam_tree
from regard.show.forward_pass.flow import show_flow
from regard.show.forward_pass.lens import show_lens
from regard.show.generation import show_generation
from regard.show.image_attention import reads_image, show_image_attention
from regard.show.inline import InlineFigure
from regard.show.neurons import draw_neurons, neuron_view, show_neurons
from regard.show.search import show_search
from regard.show.selection import VIEWS_THAT_RUN, ViewSelection
from regard.tasks.base import Run
from regard.tasks.shared.gold import best_alignment_head
from regard.tasks.shared.images import ImageInput
from regard.tasks.transformers_models import wrap_model
from regard.tasks.translate import TranslateRun


def show_run(
    run: Run,
    given: ImageInput | Sequence[str] | None,
    selection: ViewSelection | None = None,
    *,
    plain: bool = False,
    max_tokens: int | None = None,
    keep: Path | None = None,
) -> InlineFigure:
    """Draw a view of a run that reads a text or an image, and write the record to `keep`. With `plain`, which is for a user who
    names no view, draw the alignment of a translation or the regions of an image where there are some. A search reads several
    texts, by default those of the validation set."""
    choice = selection or ViewSelection()
    if choice.view == "search":
        return show_search(run, [given] if isinstance(given, str) else cast(Sequence[str] | None, given), choice)
    if given is None or isinstance(given, list | tuple):
        raise UserError(f"--view {choice.view}: it shows one text or image; several are for --view search")
    given = cast(ImageInput, given)
    text = cast(str, given)
    if choice.view == "neurons":
        return show_neurons(run, text, choice)
    if choice.view == "steps":
        return show_generation(run, text, choice, max_tokens=max_tokens)
    if choice.view == "lens":
        return show_lens(run, text, choice)
    if choice.view == "flow":
        return show_flow(run, text, choice)
    if choice.view == "beam":
        if "translate" not in run.task.verbs:
            raise UserError(f"--view beam: {run.folder} {run.task.does}; it is for runs that translate with a beam")
        return show_beam_tree(cast(TranslateRun, run), text)
    if plain and "translate" in run.task.verbs:
        return show_alignment(cast(TranslateRun, run), text, choice)
    if plain and reads_image(run, text):
        return show_image_attention(run, given, choice)
    return show_attention(run, given, choice, keep=keep)


def show_model(
    model: nn.Module | Run,
    tokenizer: object,
    text: ImageInput | Sequence[str],
    selection: ViewSelection,
    *,
    max_tokens: int | None = None,
) -> InlineFigure:
    """Draw a view of a model of transformers in memory, which is left as it is; `tokenizer` may be any processor of it."""
    if isinstance(model, Run):
        raise UserError("a run has its tokenizer: use run.show(text, view=…)")
    if not hasattr(model, "config"):
        raise UserError(
            f"{type(model).__name__} is not a model of transformers, whose inputs regard knows how to make; record any model "
            "with `with regard.watch(model) as seen: model(…)`, and draw it with seen.show(tokens=…)"
        )
    with evaluation_mode(model):
        return show_run(wrap_model(model, tokenizer), text, selection, max_tokens=max_tokens)


def show_recording(seen: AttentionRecording, tokens: Tokens | None, selection: ViewSelection, *, row: int = 0) -> InlineFigure:
    """Draw a view of one row of the batch of what `watch` recorded."""
    if not seen.calls:
        raise UserError("nothing was recorded: call the model inside `with regard.watch(model) as seen:`")
    record = seen.to_record(tokens)
    if selection.view == "neurons":
        return draw_neurons(*neuron_view(seen, record, selection, row=row))
    if selection.view in VIEWS_THAT_RUN:
        raise UserError(f"--view {selection.view}: needs the run and the text; use run.show(text, view={selection.view!r})")
    return show_record(record, selection, row=row)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


BEST_HEADS = {
    "aligner": "the head with the lowest alignment error",
    "antecedent": 'the head that most often finds the antecedent of "it"',
}
"""Names of heads that depend on the run: the best on its validation set, where a world knows the truth."""


def best_head_name(run: Run, job: str) -> str:
    """Return the name, counted from 1, of the head that does a job best on the run's validation set."""
    valid = getattr(run.data, "valid", None) if run.task.name == "translate" and run._huggingface is None else None
    gold = valid.gold or [] if isinstance(valid, SentencePairs) else []
    if not gold or (job == "antecedent" and not any(pair.pronouns for pair in gold)):
        raise UserError(
            f"--head {job}: {BEST_HEADS[job]} is known of runs that translate an embedded world (regard demo); "
            "name another head, such as 2.3 (layer.head)"
        )
    translator = cast(TranslateRun, run)
    if job == "antecedent":
        return head_name(best_antecedent_head(translator, translator.data.valid))
    layer, head = best_alignment_head(translator)
    return f"{STACK_NAMES['cross']}, layer {layer + 1}, head {head + 1}"
