"""Laws of the tokenizer: decoding inverts encoding, and words and character spans are found again."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.recipe import TokenSettings
from regard.tokens.special_tokens import SPECIAL_TOKEN_NAMES, UNK
from regard.tokens.tokenizer import load_tokenizer, train_tokenizer
from regard.worlds import bilingual

PAIRS = bilingual.generate(600, 5, level=1)
TEXTS = [pair.source for pair in PAIRS] + [pair.target for pair in PAIRS]
KINDS = ["bpe", "bytes", "wordpiece", "unigram", "characters"]
EXACT = ["bytes", "characters"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return train_tokenizer(TokenSettings(kind=request.param, size=400), TEXTS)


def test_decode_inverts_encode(tokenizer):
    assert tokenizer.decode(tokenizer.encode(TEXTS)) == TEXTS
    assert tokenizer.size <= 400
    assert [tokenizer.library.id_to_token(i) for i in range(4)] == SPECIAL_TOKEN_NAMES


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*EXACT}))
def test_spaces_are_normalised(kind):
    tokenizer = train_tokenizer(TokenSettings(kind=kind, size=400), TEXTS)
    assert tokenizer.decode(tokenizer.encode(["  The   dog \t sleeps. "])) == ["The dog sleeps."]


@pytest.mark.parametrize("kind", EXACT)
def test_characters_and_bytes_keep_every_space(kind):
    code = ["def f(x):\r", "    return  x\t", "", "  "]
    tokenizer = train_tokenizer(TokenSettings(kind=kind, size=400), code)
    assert ["".join(tokenizer.pieces(ids)) for ids in tokenizer.encode(code)] == code


def test_byte_tokenizer_encodes_any_character():
    tokenizer = train_tokenizer(TokenSettings(kind="bytes", size=400), TEXTS)
    assert tokenizer.decode(tokenizer.encode(["☃ 漢字 naïve"])) == ["☃ 漢字 naïve"]


def test_punctuation_off_splits_at_spaces_only():
    text = "mr. <unk> is chairman of n.v. 's <unk> board"
    tokenizer = train_tokenizer(TokenSettings(kind="words", split_punctuation=False), [text])
    assert [piece.strip() for piece in tokenizer.pieces(tokenizer.encode([text])[0])] == text.split()
    assert UNK not in tokenizer.encode([text])[0]  # "<unk>" in a text is a word like any other


def test_special_token_names_in_text_are_text(tokenizer):
    assert not {0, 1, 2} & set(tokenizer.encode(["the <pad> and </s> dog"])[0])


def test_word_ids_group_the_pieces_of_each_word(tokenizer):
    for text in TEXTS[:200]:
        ids = tokenizer.encode([text])[0]
        words, pieces = tokenizer.word_ids(ids), tokenizer.pieces(ids)
        words_again = ["".join(piece for piece, w in zip(pieces, words) if w == word).strip() for word in range(max(words) + 1)]
        assert words_again == text.split()


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"bytes"}))
def test_unknown_characters_become_unk(kind):
    tokenizer = train_tokenizer(TokenSettings(kind=kind, size=400), TEXTS)
    assert UNK in tokenizer.encode(["☃ ☃"])[0]


def test_saved_and_loaded_tokenizer_encodes_the_same(tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    assert load_tokenizer(tmp_path / "tokenizer.json").encode(TEXTS) == tokenizer.encode(TEXTS)


COMPOSED = [
    "cafe\u0301",
    "cafe\u0301s",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "A\u030angstro\u0308m,",
    "dog",
    "Äpfel",
    "😀",
    "x\u0301.",
    "ﬁn",
]
SPACES = [" ", "  ", "\r\n", "\n\t", "\u00a0", "\u2003 "]


@given(st.lists(st.sampled_from(COMPOSED), max_size=6), st.lists(st.sampled_from(SPACES), min_size=7, max_size=7), st.booleans())
def test_encode_spans_cover_every_word_and_no_white_space(tokenizer, words, spaces, inside):
    """Composed letters, line ends, wide characters: the tokens of a word cover the word, and no white space."""
    text = "".join(space + word for space, word in zip(spaces, words)) + (spaces[-1] if inside else "")
    ids, spans = tokenizer.encode_spans([text])[0]
    assert ids == tokenizer.encode([text])[0] and len(spans) == len(ids)
    covered_text = [text[start:end] for start, end in spans if start < end]
    assert not any(piece != piece.strip() or not piece for piece in covered_text)
    covered = {i for start, end in spans for i in range(start, end)}
    assert covered == {i for i, char in enumerate(text) if not char.isspace()}
    assert (spans[1:, 0] >= spans[:-1, 0]).all() and (spans[1:, 1] >= spans[:-1, 1]).all()
    for word, of in zip(words, range(len(words))):
        own = [span for span, number in zip(spans.tolist(), tokenizer.encode_words([text])[0][1]) if number == of]
        own = [span for span in own if span[0] < span[1]]
        assert text[own[0][0] : own[-1][1]] == word


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"model": {"type": "BPE", "vocab": {}, "merges": [["a"]]}}'])
def test_malformed_tokenizer_json_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=re.escape("tokenizer.json")):
        load_tokenizer(tmp_path / "tokenizer.json")
