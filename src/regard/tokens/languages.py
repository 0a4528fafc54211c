"""Language codes of models that translate between many languages (mBART, M2M100, NLLB): tokens around a text, and the first token
of an output."""

import difflib
import re
from dataclasses import replace

from regard.errors import UserError
from regard.tokens.special_tokens import SpecialTokens
from regard.tokens.tokenizer import Tokenizer

LANGUAGE_CODE = re.compile(r"[a-z]{2,3}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__")
"""de_DE (mBART), deu_Latn (NLLB), __de__ (M2M100)."""


def language_codes(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens of the languages in a vocabulary by their codes; M2M100's "__de__" is "de"."""
    tokens = {tokenizer.library.id_to_token(number) or "": number for number in sorted(tokenizer.special_ids)}
    return {token.strip("_"): number for token, number in tokens.items() if LANGUAGE_CODE.fullmatch(token)}


def with_languages(tokenizer: Tokenizer, source: str | None, target: str | None) -> SpecialTokens:
    """Return the special tokens with the codes of these languages, where they are given.

    The code of a text replaces the one that the tokenizer adds, or comes first. An output begins with its code after `bos`; where
    texts end with their code, or `bos` is one, the code takes the place of `bos` (the first mBART).
    """
    codes, tokens = language_codes(tokenizer), tokenizer.special_tokens
    known = set(codes.values())
    if source is not None:
        code = find_language(codes, source, "source")
        absent = not known & {*tokens.prefix, *tokens.suffix}
        prefix, suffix = (tuple(code if token in known else token for token in side) for side in (tokens.prefix, tokens.suffix))
        tokens = replace(tokens, prefix=(code, *prefix) if absent else prefix, suffix=suffix)
    if target is not None:
        code = find_language(codes, target, "target")
        replaces_bos = tokens.bos in known or bool(known & set(tokens.suffix))
        tokens = replace(tokens, bos=code) if replaces_bos else replace(tokens, output_prefix=(code,))
    return tokens


def has_target_language(tokenizer: Tokenizer) -> bool:
    """Return whether the language of the outputs is known, or the vocabulary has no languages."""
    known = set(language_codes(tokenizer).values())
    return not known or bool(known & set(tokenizer.special_tokens.output_start))


def code_before_text(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the special tokens with the language code of a text before it: the first tokenizer.json of NLLB has it at the end,
    against the paper and the model."""
    tokens, known = tokenizer.special_tokens, set(language_codes(tokenizer).values())
    moved = tuple(token for token in tokens.suffix if token in known)
    suffix = tuple(token for token in tokens.suffix if token not in known)
    return replace(tokens, prefix=(*moved, *tokens.prefix), suffix=suffix)


def find_language(codes: dict[str, int], code: str, side: str) -> int:
    """Return the token of a language."""
    if not codes:
        raise UserError(f"--{side}-language {code}: the vocabulary has no language codes; leave it out")
    if code not in codes:
        near = difflib.get_close_matches(code, codes, n=3, cutoff=0.3) or sorted(codes)[:3]
        raise UserError(f"--{side}-language {code}: not one of the {len(codes)} languages; did you mean {' or '.join(near)}?")
    return codes[code]
