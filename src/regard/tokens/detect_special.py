"""The marks of somebody's tokenizer, found by trying it."""

from pathlib import Path

from regard.errors import Mistake
from regard.tokens.special import NO_MARK, Marks
from regard.tokens.tokenizer import Tokenizer, is_ours, parse_tokenizer, require_numbered

PROBES = ("a", "the", "0", ".", "word")
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]", "<eos>")


def load_any(path: Path) -> Tokenizer:
    """A tokenizer.json of ours or of anybody, such as GPT-2's, with the marks that it puts around a text and ends it with."""
    tokenizer = parse_tokenizer(path)
    require_numbered(tokenizer, path)
    if is_ours(tokenizer):
        return tokenizer
    before, after = around(tokenizer)
    ends = [tokenizer.library.token_to_id(name) for name in ENDS]
    end = after[-1] if after else next((number for number in ends if number is not None), NO_MARK)
    if end == NO_MARK:
        raise Mistake(f"{path} has no token that ends a text; one of these is looked for: {' '.join(ENDS)}")
    between, segment = between_two(tokenizer, before, after)
    tokenizer.marks = Marks(before[-1] if before else NO_MARK, end, before, after or (end,), (), between, segment)
    return tokenizer


def around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens put before and after a text."""
    for probe in PROBES:
        plain = tokenizer.library.encode(probe, add_special_tokens=False).ids
        whole = tokenizer.library.encode(probe, add_special_tokens=True).ids
        places = [i for i in range(len(whole)) if plain and whole[i : i + len(plain)] == plain]
        if places:
            return tuple(whole[: places[0]]), tuple(whole[places[0] + len(plain) :])
    return (), ()


def between_two(tokenizer: Tokenizer, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[tuple[int, ...] | None, int]:
    """The tokens put between two texts, None where they are those after a text; and the segment of the second."""
    usual = Marks()
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
    return usual.between, usual.segment
