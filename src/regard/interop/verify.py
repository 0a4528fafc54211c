"""Run `transformers` on the same inputs as our model, and compare the outputs."""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.progress import track
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

TOLERANCE = 1e-4
"""What "equal" means in float32 (DESIGN, Promises)."""
LayerTensors = dict[str, list[Tensor]]
"""One tensor per layer, by stack or by kind of attention."""
STATES = {"text": "hidden_states", "encoder": "encoder_hidden_states", "decoder": "decoder_hidden_states"}
ATTENTION = {
    "text": "attentions",
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}
"""What `transformers` calls them."""


@dataclass
class ParityInputs:
    """A padded batch of texts as ids; for an encoder–decoder also the target ids so far; or images."""

    source: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    segments: Tensor | None = None  # (B, S)
    """Which text of a pair each token belongs to."""
    target: Tensor | None = None  # (B, T)
    prompts: list[list[int]] = field(default_factory=list)
    """What generation starts from, special tokens included; for an encoder–decoder, the source texts."""
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    pixels: Tensor | None = None  # (B, 3, H, W)
    """Normalized images, read instead of the texts or beside them; if instead, `source` only counts their positions."""
    positions: int = 0
    """Positions of an image that is read beside a text; otherwise 0."""
    max_tokens: int = 24
    beam: int = 4

    @property
    def attention_mask(self) -> Tensor:
        """Return which source tokens are not padding."""
        return torch.arange(self.source.size(1)) < self.lengths[:, None]  # (B, S)


@dataclass
class ParityOutputs:
    """What a model computes from the inputs: logits, hidden states and attention of every layer, generated ids."""

    logits: Tensor
    states: LayerTensors
    """(B, S, D) of each layer, by stack."""
    attention: LayerTensors
    """(B, H, T, S) of each layer, by kind."""
    greedy: list[list[int]] = field(default_factory=list)
    beam: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class ConversionProof:
    """The largest differences, and how many generated texts are equal."""

    against: str
    logits: float
    states: float | None
    """None if the other program does not expose them; the same for the attention."""
    attention: float | None
    texts: int = 0
    greedy: int = 0
    beam: int | None = 0
    """None if the other program's beam search stops by another rule."""
    measured: str = "logits"
    """What was compared in place of the logits, if the other program does not expose those."""

    @property
    def passed(self) -> bool:
        return (
            max(self.logits, self.states or 0.0, self.attention or 0.0) <= TOLERANCE
            and self.texts == self.greedy
            and self.beam in (None, self.texts)
        )

    def lines(self) -> list[str]:
        """Return the proof in words, one line per measure."""
        differences = {self.measured: self.logits, "hidden states": self.states, "attention weights": self.attention}
        lines = [f"{name}: largest difference {value:.1e}" for name, value in differences.items() if value is not None]
        if self.texts:
            lines.append(f"greedy text: the same in {self.greedy} of {self.texts}")
        if self.texts and self.beam is not None:
            lines.append(f"beam text, length penalty 0: the same in {self.beam} of {self.texts}")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "passed": self.passed}


def is_transformers_installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


def compare_outputs(ours: ParityOutputs, theirs: ParityOutputs, inputs: ParityInputs, against: str) -> ConversionProof:
    """Compare two models' outputs, without the padding."""

    def largest_difference(a: Tensor, b: Tensor, valid: Tensor) -> float:
        assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
        return float((a.float() - b.float())[valid].abs().max()) if valid.any() else 0.0

    every_text = torch.ones(len(inputs.source), dtype=torch.bool)
    valid = every_text if ours.logits.dim() == 2 else valid_positions(inputs, "decoder")
    logits = largest_difference(ours.logits, theirs.logits, valid)
    states = [
        largest_difference(a, b, valid_positions(inputs, name))
        for name in ours.states
        for a, b in zip(ours.states[name], theirs.states[name], strict=True)
    ]
    attention = [
        largest_difference(a.transpose(1, 2), b.transpose(1, 2), valid_positions(inputs, name))
        for name in ours.attention
        for a, b in zip(ours.attention[name], theirs.attention[name], strict=True)
    ]
    greedy, beam = (
        sum(a == b for a, b in zip(*pair, strict=True)) for pair in ((ours.greedy, theirs.greedy), (ours.beam, theirs.beam))
    )
    return ConversionProof(against, logits, max(states, default=0.0), max(attention, default=0.0), len(ours.greedy), greedy, beam)


def valid_positions(inputs: ParityInputs, name: str) -> Tensor:
    """Return the query positions to compare: all of a target or an image, those of a source before its end, all vectors."""
    if name in ("image", "features"):
        return torch.ones(len(inputs.source), *([inputs.positions] if name == "image" else []), dtype=torch.bool)
    if inputs.target is not None and name in ("decoder", "cross"):
        return torch.ones(inputs.target.shape, dtype=torch.bool)
    return inputs.attention_mask


@torch.no_grad()
def run_transformers(folder: Path, inputs: ParityInputs, *, generates: bool, encodes: bool = False) -> ParityOutputs:
    """Return the outputs of `transformers`, by the class that the folder names; a bare model's logits are its last hidden states,
    and so are those of any model with `encodes`. With `generates`, also generate texts."""
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = (config.get("architectures") or [None])[0]
    model_class = getattr(transformers, name) if name else transformers.AutoModel
    model = model_class.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    arguments = transformers_arguments(inputs, config.get("pad_token_id") or 0, getattr(model.config, "type_vocab_size", None))
    outputs = model(**arguments, output_hidden_states=True, output_attentions=True, return_dict=True)
    if "start_logits" in outputs:
        logits = torch.stack([outputs["start_logits"], outputs["end_logits"]], dim=-1)
    else:
        names = ("logits", "prediction_logits", "logits_per_image", "last_hidden_state")
        logits = next(outputs[name] for name in names if name in outputs)
    if encodes and "last_hidden_state" not in outputs:
        logits = outputs["hidden_states"][-1]
    found = ParityOutputs(logits, *states_and_attention(outputs))
    if generates:
        for prompt in track(inputs.prompts, len(inputs.prompts)):
            found.greedy.append(generate_ids(model, prompt, inputs, 1))
            found.beam.append(generate_ids(model, prompt, inputs, inputs.beam))
    return found


def transformers_arguments(inputs: ParityInputs, pad: int, segments: int | None) -> dict[str, Tensor]:
    """Return the inputs by the names of `transformers`; `segments` is the size of the segment embedding, if there is one."""
    arguments = {} if inputs.pixels is None else {"pixel_values": inputs.pixels}
    if inputs.pixels is None or inputs.positions:
        mask = inputs.attention_mask
        arguments |= {"input_ids": inputs.source.masked_fill(~mask, pad), "attention_mask": mask.long()}
    if inputs.target is not None:
        arguments["decoder_input_ids"] = inputs.target
    if inputs.segments is not None and segments is not None:
        arguments["token_type_ids"] = inputs.segments.clamp(max=segments - 1)
    return arguments


def states_and_attention(outputs: Mapping[str, Any]) -> tuple[LayerTensors, LayerTensors]:
    """Return the hidden states and attention of every layer; of CLIP those of both towers, and the unit vectors ("features")."""
    if "vision_model_output" in outputs:
        towers = {"image": outputs["vision_model_output"], "text": outputs["text_model_output"]}
        states = {name: list(tower["hidden_states"]) for name, tower in towers.items()}
        features = [outputs["image_embeds"], outputs["text_embeds"]]
        return {"features": features, **states}, {name: list(tower["attentions"]) for name, tower in towers.items()}
    states, attention = (
        {name: list(outputs[key]) for name, key in names.items() if key in outputs} for names in (STATES, ATTENTION)
    )
    return states, attention


def generate_ids(model: Any, prompt: list[int], inputs: ParityInputs, beam: int) -> list[int]:
    """Return what `transformers` generates after a prompt, without special tokens. As in our search, beams continue until no
    unfinished one can win, and at the limit only the end token may follow. No KV cache: theirs miscounts the layers of a T5
    whose decoder is deeper than its encoder."""
    special_tokens, encoder_decoder = inputs.special_tokens, inputs.target is not None
    eos = special_tokens.eos
    has_eos = eos != NO_TOKEN
    settings = importlib.import_module("transformers").GenerationConfig(
        num_beams=beam,
        do_sample=False,
        use_cache=False,
        max_new_tokens=inputs.max_tokens + has_eos + len(special_tokens.output_prefix),
        length_penalty=0.0,
        early_stopping="never" if beam > 1 else False,
        eos_token_id=eos if has_eos else None,
        pad_token_id=eos if has_eos else 0,
        decoder_start_token_id=special_tokens.bos if encoder_decoder else None,
        forced_bos_token_id=special_tokens.output_prefix[0] if special_tokens.output_prefix else None,
        suppress_tokens=list(special_tokens.suppressed) or None,
    )
    start = len(special_tokens.output_start) if encoder_decoder else len(prompt)

    def force_eos_at_limit(ids: Tensor, scores: Tensor) -> Tensor:
        if not has_eos or ids.size(1) < start + inputs.max_tokens:
            return scores
        return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([eos]), scores[:, [eos]])

    ids = torch.tensor([prompt])
    model.generation_config = settings
    generated: list[int] = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings, logits_processor=[force_eos_at_limit]
    )[0].tolist()[start:]
    return generated[: generated.index(eos)] if eos in generated else generated
