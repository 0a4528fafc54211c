"""Outputs of language models and masked models: the token or word after a text, at a word of it, or at a mask."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.errors import UserError
from regard.explain.selection import (
    PUNCTUATION,
    ExplainedOutput,
    OutputSelection,
    find_word,
    predict_word,
    with_predicted_output,
    word_tokens,
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
    """Return the token after a text, or at the selected word of it: the predicted one, or all tokens of another word."""
    selection.refuse(run, but=("word", "position"), cure="use --word, --position")
    text, description = text_before(text, selection.position)
    ids = run._encode_prompts([text])[0]
    special = (run._special_tokens.bos, run._special_tokens.eos)
    positions = [position for position, token in enumerate(ids) if token not in special]
    target = text_target(run, {"target": torch.tensor([ids], device=run.device)}, "target", positions, len(ids) - 1)
    return explain_token(
        lambda tokens: predict_word(target, "target", ids, tokens), run.tokenizers[0], text, description, selection
    )


def masked_token_output(run: MaskedRun, text: str, selection: OutputSelection) -> ExplainedOutput:
    """Return the token at a mask of a text: the predicted one, or another word, with a mask for each of its tokens. A selected
    word is masked."""
    selection.refuse(run, but=("word", "position"), cure="use --word, --position")
    text, before = mask_word(text, selection.position)
    number, offset = len(MASK_PATTERN.findall(before)), len(run._special_tokens.prefix)

    def predict(tokens: Sequence[int]) -> TextTarget:
        ids = run._encode_masked(repeat_mask(text, before, len(tokens)))
        masks = [offset + position for position, token in enumerate(ids) if token == run._mask_id]
        encoded = encoder_inputs(Ragged.from_rows([ids]), run._special_tokens)
        inputs = {name: part.to(run.device) for name, part in encoded.items()}
        positions = [position for position in range(offset, offset + len(ids)) if position not in masks]
        return predict_at_masks(text_target(run, inputs, "source", positions, None), masks[number:], tokens)

    description = describe_mask(number, len(MASK_PATTERN.findall(text)))
    return explain_token(predict, run.tokenizers[0], last_part(before), description, selection)


def repeat_mask(text: str, before: str, number: int) -> str:
    """Return the text with several masks in place of the one that follows `before`."""
    mask = MASK_PATTERN.match(text, len(before))
    assert mask is not None
    return f"{before}{mask.group() * number}{text[mask.end() :]}"


def predict_at_masks(target: TextTarget, masks: Sequence[int], tokens: Sequence[int]) -> TextTarget:
    """Return the target that predicts the tokens of a word at the masks from the first one on."""
    return replace(target, step=masks[0], output=tokens[0], further=tuple(zip(masks[1:], tokens[1:])))


def text_before(text: str, position: str | None) -> tuple[str, str]:
    """Return the text before the selected word, or the whole text, and a phrase for the token after it with {} for the token."""
    description = "the next {}"
    if position is None:
        return text, description
    words = list(re.finditer(r"\S+", text))
    chosen = words[find_word(position, [word.group() for word in words])]
    before = text[: chosen.start()].rstrip()  # later words have no influence
    if not before:
        raise UserError(f"--position {position}: no word stands before the first one to explain it by")
    return before, f"{description} at word {words.index(chosen) + 1} of {len(words)}"


def describe_mask(number: int, masks: int) -> str:
    return "the {} at the mask" if masks == 1 else f"the {{}} at mask {number + 1} of {masks}"


def last_part(text: str) -> str:
    """Return the text after the last mask."""
    return MASK_PATTERN.split(text)[-1].rstrip()


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


def explain_token(
    predict: Callable[[Sequence[int]], TextTarget], tokenizer: Tokenizer, text: str, description: str, selection: OutputSelection
) -> ExplainedOutput:
    """Return the token that is predicted after `text`, or the selected word.

    `predict` returns the target of these tokens, of which -1 is not set yet; `description` has {} for the token or word."""
    word, other = selection.word, selection.against
    tokens = [-1] if word is None else word_tokens("word", text, word, tokenizer)
    target = with_predicted_output(predict(tokens))
    named = f"token {tokenizer.labels([target.output])[0]!r}" if len(tokens) == 1 else f"word {word!r} of {len(tokens)} tokens"
    against = None if other is None else predict(word_tokens("against", text, other, tokenizer))
    return ExplainedOutput(
        target,
        feature_labels(target, tokenizer),
        f"{description.format(named)}, {'predicted' if word is None else 'selected'}",
        against=None if against is None else (against, f"{other!r} in its place"),
    )


def text_target(
    run: Run, inputs: dict[str, Tensor], input_name: str, positions: Sequence[int], step: int | None, output: int = -1
) -> TextTarget:
    """Return a target with the tokens at some positions as features. An output of -1 is not set yet."""
    if not positions:
        raise UserError("there is nothing to explain in an empty text")
    at = torch.tensor(list(positions), device=run.device)
    return TextTarget(run.model, inputs, input_name, at, output, replacement_token(run.tokenizers[0]), step)


def feature_labels(target: TextTarget, tokenizer: Tokenizer) -> list[str]:
    """Return the tokens that are features, as they are shown."""
    return tokenizer.labels(target.input[0, target.positions].tolist())


def replacement_token(tokenizer: Tokenizer) -> int:
    """Return the token that replaces a masked one: mask, unknown or padding, whichever the vocabulary has first, else the end."""
    known = (tokenizer.library.token_to_id(name) for name in REPLACEMENT_TOKENS)
    found = next((token for token in known if token is not None), tokenizer.special_tokens.eos)
    if found == NO_TOKEN:
        raise UserError("the vocabulary has no mask, unknown, padding or end token that could replace a masked one")
    return found
