"""Outputs of language models and masked models: the token predicted after a text, at a word of it, or at a mask."""

import re
from collections.abc import Sequence

import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.errors import UserError
from regard.explain.selection import (
    PUNCTUATION,
    ExplainedOutput,
    OutputSelection,
    find_word,
    with_predicted_output,
)
from regard.explain.target import TextTarget
from regard.tasks.base import Run
from regard.tasks.language import LanguageRun
from regard.tasks.masked import MASK_PATTERN, MaskedRun
from regard.tokens.special_tokens import NO_TOKEN
from regard.tokens.tokenizer import Tokenizer

REPLACEMENT_TOKENS = ("<mask>", "[MASK]", "<unk>", "[UNK]", "<pad>", "[PAD]")
WORD_OR_MASK = re.compile(rf"(?:{MASK_PATTERN.pattern}|\S)(?:(?!{MASK_PATTERN.pattern})\S)*")
"""A word ends at white space and before a mask."""


def next_token_output(run: LanguageRun, text: str, selection: OutputSelection) -> ExplainedOutput:
    """Return the token after a text, or at the selected word of it: the predicted one, or the first of another word."""
    selection.refuse(run, but=("word", "position"), cure="use --word, --position")
    description = "the next token {}"
    if selection.position is not None:
        words = list(re.finditer(r"\S+", text))
        chosen = words[find_word(selection.position, [word.group() for word in words])]
        description += f" at word {words.index(chosen) + 1} of {len(words)}"
        text = text[: chosen.start()].rstrip()  # later words have no influence
        if not text:
            raise UserError(f"--position {selection.position}: no word stands before the first one to explain it by")
    ids = run._encode_prompts([text])[0]
    special = (run._special_tokens.bos, run._special_tokens.eos)
    positions = [position for position, token in enumerate(ids) if token not in special]
    inputs = {"target": torch.tensor([ids], device=run.device)}
    return predicted_token(run, inputs, positions, len(ids) - 1, text, description, selection)


def masked_token_output(run: MaskedRun, text: str, selection: OutputSelection) -> ExplainedOutput:
    """Return the token at a mask of a text: the predicted one, or the first of another word. A selected word is masked."""
    selection.refuse(run, but=("word", "position"), cure="use --word, --position")
    text, before = mask_word(text, selection.position)
    ids, offset = run._encode_masked(text), len(run._special_tokens.prefix)
    masks = [position for position, token in enumerate(ids) if token == run._mask_id]
    number = len(MASK_PATTERN.findall(before))
    inputs = encoder_inputs(Ragged.from_rows([ids]), run._special_tokens)
    return predicted_token(
        run,
        {name: part.to(run.device) for name, part in inputs.items()},
        [offset + position for position in range(len(ids)) if position not in masks],
        offset + masks[number],
        MASK_PATTERN.split(before)[-1].rstrip(),
        "the token {} at the mask" if len(masks) == 1 else f"the token {{}} at mask {number + 1} of {len(masks)}",
        selection,
    )


def mask_word(text: str, position: str | None) -> tuple[str, str]:
    """Return the text with a mask at the selected word, and what stands before that mask: the first one if none is selected."""
    if position is None:
        first = MASK_PATTERN.search(text)
        if first is None:
            raise UserError(f"{text!r} has no mask; write [MASK] where a word is missing, or give --position")
        return text, text[: first.start()]
    words = list(WORD_OR_MASK.finditer(text))
    chosen = words[find_word(position, [word.group() for word in words])]
    if MASK_PATTERN.match(chosen.group()):
        return text, text[: chosen.start()]
    word = chosen.group().strip(PUNCTUATION) or chosen.group()
    start = chosen.start() + chosen.group().index(word)
    return f"{text[:start]}[MASK]{text[start + len(word) :]}", text[:start]


def word_tokens(option: str, text: str, word: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a word as it is written after a text."""
    longer, shorter = tokenizer.encode([f"{text} {word}", text]) if text else ([], [])
    continues = longer[: len(shorter)] == shorter and len(longer) > len(shorter)
    found = longer[len(shorter) :] if continues else tokenizer.encode([word])[0]
    if not found:
        raise UserError(f"--{option} {word!r}: no such token")
    return found


def predicted_token(
    run: Run,
    inputs: dict[str, torch.Tensor],
    positions: Sequence[int],
    step: int,
    text: str,
    description: str,
    selection: OutputSelection,
) -> ExplainedOutput:
    """Return the token that a step predicts after `text`, or the first of the selected word; `description` has {} for it."""
    tokenizer, word, other = run.tokenizers[0], selection.word, selection.against
    tokens = [-1] if word is None else word_tokens("word", text, word, tokenizer)
    (input_name,) = {"source", "target"} & inputs.keys()
    target, features = text_target(run, inputs, input_name, positions, tokens[0], step)
    label = token_label(tokenizer, target.output)
    named = repr(label) if len(tokens) == 1 else f"{label!r}, the first of {word!r},"
    return ExplainedOutput(
        target,
        features,
        f"{description.format(named)}, {'predicted' if word is None else 'selected'}",
        against=None if other is None else (word_tokens("against", text, other, tokenizer)[0], f"{other!r} in its place"),
    )


def text_target(
    run: Run, inputs: dict[str, torch.Tensor], input_name: str, positions: Sequence[int], output: int, step: int | None
) -> tuple[TextTarget, list[str]]:
    """Return the target and the tokens at its positions. An output of -1 is the predicted one."""
    if not positions:
        raise UserError("there is nothing to explain in an empty text")
    tokenizer, at = run.tokenizers[0], torch.tensor(list(positions), device=run.device)
    target = TextTarget(run.model, inputs, input_name, at, output, replacement_token(tokenizer), step)
    return with_predicted_output(target), [token_label(tokenizer, i) for i in inputs[input_name][0, list(positions)].tolist()]


def token_label(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece(token).strip() or tokenizer.library.id_to_token(token) or str(token)


def replacement_token(tokenizer: Tokenizer) -> int:
    """Return the token that replaces a masked one: mask, unknown or padding, whichever the vocabulary has first, else the end."""
    known = (tokenizer.library.token_to_id(name) for name in REPLACEMENT_TOKENS)
    found = next((token for token in known if token is not None), tokenizer.special_tokens.eos)
    if found == NO_TOKEN:
        raise UserError("the vocabulary has no mask, unknown, padding or end token that could replace a masked one")
    return found
