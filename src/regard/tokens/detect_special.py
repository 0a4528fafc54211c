"""The marks of somebody's tokenizer, found by trying it."""

from pathlib import Path

from regard.errors import UserError
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens
from regard.tokens.tokenizer import Tokenizer, has_default_special_tokens, parse_tokenizer, require_contiguous_ids

PROBES = ("a", "the", "0", ".", "word")
END_TOKEN_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]", "<eos>")


def load_any_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json of ours or of anybody, such as GPT-2's, with the marks that it puts around a text and ends it with."""
    tokenizer = parse_tokenizer(path)
    require_contiguous_ids(tokenizer, path)
    if has_default_special_tokens(tokenizer):
        return tokenizer
    before, after = tokens_around_text(tokenizer)
    ends = [tokenizer.library.token_to_id(name) for name in END_TOKEN_NAMES]
    end = after[-1] if after else next((number for number in ends if number is not None), NO_TOKEN)
    if end == NO_TOKEN:
        raise UserError(f"{path} has no token that ends a text; one of these is looked for: {' '.join(END_TOKEN_NAMES)}")
    between, segment = tokens_between_texts(tokenizer, before, after)
    tokenizer.special_tokens = SpecialTokens(
        before[-1] if before else NO_TOKEN, end, before, after or (end,), (), between, segment
    )
    return tokenizer


def tokens_around_text(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens put before and after a text."""
    for probe in PROBES:
        plain = tokenizer.library.encode(probe, add_special_tokens=False).ids
        whole = tokenizer.library.encode(probe, add_special_tokens=True).ids
        places = [i for i in range(len(whole)) if plain and whole[i : i + len(plain)] == plain]
        if places:
            return tuple(whole[: places[0]]), tuple(whole[places[0] + len(plain) :])
    return (), ()


def tokens_between_texts(
    tokenizer: Tokenizer, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, int]:
    """The tokens put between two texts, None where they are those after a text; and the segment of the second."""
    usual = SpecialTokens()
    for probe in PROBES:
        plain = tuple(tokenizer.library.encode(probe, add_special_tokens=False).ids)
        both = tokenizer.library.encode(probe, probe, add_special_tokens=True)
        begin, end = (*before, *plain), (*plain, *after)
        if (
            plain
            and len(both.ids) >= len(begin) + len(end)
            and tuple(both.ids[: len(begin)]) == begin
            and tuple(both.ids[-len(end) :]) == end
        ):
            between = tuple(both.ids[len(begin) : -len(end)])
            return None if between == after else between, both.type_ids[-len(end)]
    return usual.pair_separator, usual.second_segment
