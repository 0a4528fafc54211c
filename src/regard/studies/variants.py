"""The models that a ladder compares, as changes of one recipe: the history of attention, and the Transformer without one of its
components."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.recipe import Recipe
from regard.run.train import to_recipe

RECURRENT: dict[str, Any] = {"kind": "recurrent", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 1, "tie": "target"}
RECURRENT_WITH_ATTENTION: dict[str, Any] = {**RECURRENT, "attention": "general", "decoder": "luong", "input_feeding": True}


@dataclass(frozen=True)
class Variant:
    """One model of a ladder: its name, the settings it changes, and the claim it tests."""

    name: str
    change: dict[str, Any]
    claim: str = ""
    pretrain: "Variant | None" = None
    """A variant trained first, whose weights this one starts from."""
    shares_settings_of: str = ""
    """The run folder of the variant whose settings in `ladder.rungs` hold for this one too."""

    @property
    def folder(self) -> str:
        """The name of its run folder, "rnn-with-attention"."""
        return self.name.lower().replace(",", "").replace(" ", "-")


def ladder_variants(recipe: Recipe) -> list[Variant]:
    """Return RNN, RNN with attention, the same with a pretrained encoder (CoVe), Transformer and Universal Transformer."""
    width = 2 * recipe.model.width
    attention = {**RECURRENT_WITH_ATTENTION, "width": width}
    universal = {**recipe.model.model_dump(mode="json", exclude_none=True), "kind": "universal", "encoder_widths": None}
    change = {"model": attention, "data": {"reverse": True}}
    reverse = Variant("reverse direction", change, shares_settings_of="rnn-with-attention-cove")
    init_from = {"init_from": {"run": reverse.folder, "modules": ["encoder."], "tokenizer": False}}
    return [
        Variant("RNN", {"model": {**RECURRENT, "attention": "none", "width": width}}, "one vector holds the whole source"),
        Variant("RNN with attention", {"model": attention}, "attends to every source word"),
        Variant(
            "RNN with attention, CoVe",
            {"model": attention, "train": init_from},
            "its encoder was pretrained on translation",
            pretrain=reverse,
        ),
        Variant("Transformer", {}, "uses nothing but attention"),
        Variant("Universal Transformer", {"model": universal}, "one block, applied as often as each word needs"),
    ]


def ablation_variants(recipe: Recipe) -> list[Variant]:
    """Return the Transformer, and variants without one of its components, each with the claim about that component."""

    def model(**change: Any) -> dict[str, Any]:
        return {"model": change}

    return [
        Variant("unchanged", {}),
        Variant("one head", model(heads=1, key_width=recipe.model.width), "several heads attend to several things at once"),
        Variant("no score scaling", model(scale_scores=False), "unscaled scores saturate the softmax"),
        Variant("no positions", model(positions={"kind": "none"}), "without positions a sentence is a bag of words"),
        Variant("learned positions", model(positions={"kind": "learned"}), "learned positions do as well as sinusoids"),
        Variant("no residuals", model(residual=False), "residual connections make depth trainable"),
        Variant("batch norm", model(norm="batch"), "layer norm suits sequences better than batch norm"),
        Variant(
            "no label smoothing",
            {"train": {"regularize": {"label_smoothing": 0.0}}},
            "label smoothing improves BLEU and worsens perplexity",
        ),
        Variant("greedy", {"decode": {"beam": 1}}, "beam search beats greedy search"),
    ]


def require_transformer(recipe: Recipe | dict[str, Any] | str | Path, overrides: Sequence[str]) -> Recipe:
    """Return a recipe of a Transformer that translates, or raise a UserError."""
    base = to_recipe(recipe, overrides)
    if base.task != "translate":
        raise UserError(f"task = {base.task!r}: a ladder needs task = 'translate'")
    if base.model.kind != "transformer":
        raise UserError(f"model.kind = {base.model.kind!r}: a ladder starts from the recipe of a Transformer")
    return base


def merge_settings(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return settings with a change; a change with a `kind` replaces the whole section."""
    merged = dict(base)
    for key, value in change.items():
        if not isinstance(value, dict):
            merged[key] = value
        elif "kind" in value:
            merged[key] = {k: v for k, v in value.items() if v is not None}
        else:
            merged[key] = merge_settings(base.get(key) or {}, value)
    return merged
