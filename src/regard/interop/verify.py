"""What `transformers` says of the same ids, and how far ours is from it."""

import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

TOLERANCE = 1e-4
"""What "equal" means in float32 (DESIGN, Promises)."""


@dataclass
class ParityInputs:
    """Some texts as ids: what is read, filled up to the longest, and where a second text is written what was written so far."""

    source: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    segments: Tensor | None = None  # (B, S)
    """Which of two texts each token belongs to, where two are read together."""
    target: Tensor | None = None  # (B, T)
    prompts: list[list[int]] = field(default_factory=list)
    """What is written on from, marks included; the texts that are read, where a second text is written."""
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    pixels: Tensor | None = None  # (B, 3, H, W)
    """Normalised pictures, which are read instead, or beside the texts; instead, `source` only counts their positions."""
    positions: int = 0
    """Of a picture that is read beside a text; 0 where it is not."""
    max_tokens: int = 24
    beam: int = 4

    @property
    def attention_mask(self) -> Tensor:
        return torch.arange(self.source.size(1)) < self.lengths[:, None]  # (B, S)


@dataclass
class ParityOutputs:
    """What a model makes of what it was asked: logits, the states of every layer, attention weights, texts as ids."""

    logits: Tensor
    states: dict[str, list[Tensor]]
    """(B, S, D) of each layer, by stack."""
    attention: dict[str, list[Tensor]]
    """(B, H, T, S) of each layer, by kind."""
    greedy: list[list[int]] = field(default_factory=list)
    beam: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class ConversionProof:
    """The largest differences, and in how many of the texts the same was written."""

    against: str
    logits: float
    states: float | None
    """None where the other side does not show them; attention likewise."""
    attention: float | None
    texts: int = 0
    greedy: int = 0
    beam: int | None = 0
    """None where the other side's search ends otherwise than ours."""
    measured: str = "logits"
    """What stands for the logits, where the other side does not show those either."""

    @property
    def passed(self) -> bool:
        return (
            max(self.logits, self.states or 0.0, self.attention or 0.0) <= TOLERANCE
            and self.texts == self.greedy
            and self.beam in (None, self.texts)
        )

    def lines(self) -> list[str]:
        found = [
            f"{name}: largest difference {value:.1e}"
            for name, value in (
                (self.measured, self.logits),
                ("states of every layer", self.states),
                ("attention weights", self.attention),
            )
            if value is not None
        ]
        if self.texts:
            found.append(f"greedy text: the same in {self.greedy} of {self.texts}")
        if self.texts and self.beam is not None:
            found.append(f"beam text, length penalty 0: the same in {self.beam} of {self.texts}")
        return found

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "passed": self.passed}


def is_transformers_installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


def compare_outputs(ours: ParityOutputs, theirs: ParityOutputs, asked: ParityInputs, against: str) -> ConversionProof:
    """Only what is real counts: what stands behind a text's end is nobody's business."""

    def apart(one: Tensor, other: Tensor, real: Tensor) -> float:
        assert one.shape == other.shape, f"{tuple(one.shape)} against {tuple(other.shape)}"
        return float((one.float() - other.float())[real].abs().max()) if real.any() else 0.0

    one_a_text = torch.ones(len(asked.source), dtype=torch.bool)
    logits = apart(ours.logits, theirs.logits, one_a_text if ours.logits.dim() == 2 else valid_positions(asked, "decoder"))
    states = [
        apart(a, b, valid_positions(asked, name))
        for name in ours.states
        for a, b in zip(ours.states[name], theirs.states[name], strict=True)
    ]
    attention = [
        apart(a.transpose(1, 2), b.transpose(1, 2), valid_positions(asked, name))
        for name in ours.attention
        for a, b in zip(ours.attention[name], theirs.attention[name], strict=True)
    ]
    same = [[a == b for a, b in zip(*pair, strict=True)] for pair in ((ours.greedy, theirs.greedy), (ours.beam, theirs.beam))]
    return ConversionProof(
        against, logits, max(states, default=0.0), max(attention, default=0.0), len(ours.greedy), sum(same[0]), sum(same[1])
    )


def valid_positions(asked: ParityInputs, name: str) -> Tensor:
    """The queries that count: all of a target and of a picture, of a source those before its end; of one vector for each, all."""
    if name in ("image", "features"):
        return torch.ones(len(asked.source), *([asked.positions] if name == "image" else []), dtype=torch.bool)
    if asked.target is not None and name in ("decoder", "cross"):
        return torch.ones(asked.target.shape, dtype=torch.bool)
    return asked.attention_mask


@torch.no_grad()
def run_transformers(folder: Path, asked: ParityInputs, *, writes: bool) -> ParityOutputs:
    """What `transformers` says, by the class that the folder names; a bare model's logits are its last states. `writes` asks for
    texts too."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = (config.get("architectures") or [None])[0]
    kind = getattr(transformers, name) if name else transformers.AutoModel
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    pad = config.get("pad_token_id") or 0
    inputs = {} if asked.pixels is None else {"pixel_values": asked.pixels}
    if asked.pixels is None or asked.positions:
        inputs |= {
            "input_ids": asked.source.masked_fill(~asked.attention_mask, pad),
            "attention_mask": asked.attention_mask.long(),
        }
    if asked.target is not None:
        inputs["decoder_input_ids"] = asked.target
    if asked.segments is not None and hasattr(model.config, "type_vocab_size"):
        inputs["token_type_ids"] = asked.segments.clamp(max=model.config.type_vocab_size - 1)
    found = model(**inputs, output_hidden_states=True, output_attentions=True, return_dict=True)
    logits = (
        torch.stack([found["start_logits"], found["end_logits"]], dim=-1)
        if "start_logits" in found
        else next(
            found[name] for name in ("logits", "prediction_logits", "logits_per_image", "last_hidden_state") if name in found
        )
    )
    said = ParityOutputs(
        logits, *(clip_states_and_attention(found) if asked.positions else states_and_attention(found, asked.target is not None))
    )
    if writes:
        said.greedy = [generate_ids(model, prompt, asked, 1) for prompt in asked.prompts]
        said.beam = [generate_ids(model, prompt, asked, asked.beam) for prompt in asked.prompts]
    return said


def states_and_attention(found: Any, two: bool) -> tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    if not two:
        return {"text": list(found["hidden_states"])}, {"text": list(found["attentions"])}
    return (
        {"encoder": list(found["encoder_hidden_states"]), "decoder": list(found["decoder_hidden_states"])},
        {
            "encoder": list(found["encoder_attentions"]),
            "decoder": list(found["decoder_attentions"]),
            "cross": list(found["cross_attentions"]),
        },
    )


def clip_states_and_attention(found: Any) -> tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Of a picture and a text; with their vectors, of length 1."""
    towers = {"image": found["vision_model_output"], "text": found["text_model_output"]}
    return (
        {
            "features": [found["image_embeds"], found["text_embeds"]],
            **{name: list(tower["hidden_states"]) for name, tower in towers.items()},
        },
        {name: list(tower["attentions"]) for name, tower in towers.items()},
    )


def generate_ids(model: Any, prompt: list[int], asked: ParityInputs, beam: int) -> list[int]:
    """What is written after a prompt, without marks. As in our search, beams go on until nothing alive can win, and at the limit
    nothing but the end mark may follow. No cache, for theirs miscounts the layers of a T5 whose decoder is deeper than its
    encoder."""
    from transformers import GenerationConfig

    marks, two = asked.special_tokens, asked.target is not None
    ends = marks.eos != NO_TOKEN
    settings = GenerationConfig(
        num_beams=beam,
        do_sample=False,
        use_cache=False,
        max_new_tokens=asked.max_tokens + ends,
        length_penalty=0.0,
        early_stopping="never" if beam > 1 else False,
        eos_token_id=marks.eos if ends else None,
        pad_token_id=marks.eos if ends else 0,
        decoder_start_token_id=marks.bos if two else None,
        suppress_tokens=list(marks.suppressed) or None,
    )
    last = (1 if two else len(prompt)) + asked.max_tokens

    def end_at_the_limit(ids: Tensor, scores: Tensor) -> Tensor:
        if not ends or ids.size(1) < last:
            return scores
        return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([marks.eos]), scores[:, [marks.eos]])

    ids = torch.tensor([prompt])
    model.generation_config = settings
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings, logits_processor=[end_at_the_limit]
    )[0].tolist()[1 if two else len(prompt) :]
    return found[: found.index(marks.eos)] if marks.eos in found else found
