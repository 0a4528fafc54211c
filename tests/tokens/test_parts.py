"""Laws of cutting: the ids of the parts are those of the text, whoever made the tokenizer and whatever the text."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from regard.recipe import TokenSettings
from regard.tokens.chunks import keep_whole, make_splitter
from regard.tokens.tokenizer import Tokenizer, train_tokenizer
from regard.worlds import bilingual

TEXTS = [pair.target for pair in bilingual.generate(300, 1, level=1)]
KINDS = {
    "bpe": TokenSettings(kind="bpe", size=200),
    "lowercase": TokenSettings(kind="bpe", size=200, lowercase=True),
    "without punctuation apart": TokenSettings(kind="bpe", size=200, split_punctuation=False),
    "bytes": TokenSettings(kind="bytes", size=400),
    "wordpiece": TokenSettings(kind="wordpiece", size=200),
    "unigram": TokenSettings(kind="unigram", size=200),
    "words": TokenSettings(kind="words", size=200),
}
WORDS = st.sampled_from(
    [
        "Der",
        "größere",
        "Hund.",
        "ΣΑΣ",
        "don't",
        "ﬁ",
        "e\u0301",
        "\u0301",
        "▁",
        "a▁b",
        "▁c",
        "_",
        "漢字",
        "\x1c",
        "\t",
        "\xa0",
        "\u3000",
        "\u2028",
        "",
        "<pad>",
        "[MASK]",
        "##er",
        "İ",
        "\u200d",
        "12,5",
        "'s",
    ]
)
TEXT = st.one_of(st.text(), st.lists(WORDS).map(" ".join), st.lists(WORDS).map("".join))


def bert():
    letters = [chr(i) for i in range(33, 127)]
    known = ["[UNK]", *letters, *("##" + letter for letter in letters)]
    library = Library(models.WordPiece({token: number for number, token in enumerate(known)}, unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(["[MASK]"])
    return Tokenizer(library)


@pytest.fixture(scope="module", params=[*KINDS, "bert"])
def tokenizer(request):
    return bert() if request.param == "bert" else train_tokenizer(KINDS[request.param], TEXTS)


@given(TEXT)
@example("a  b\t c ")
@example("x ▁b")
def test_parts_have_the_ids_of_the_text(tokenizer, text):
    parts = make_splitter(tokenizer)(text)
    assert [i for ids in tokenizer.encode(parts) for i in ids] == tokenizer.encode([text])[0]


def test_texts_are_cut_into_words(tokenizer):
    assert [part.strip() for part in make_splitter(tokenizer)("Der Hund")] == ["Der", "Hund"]


def test_characters_are_not_cut():
    assert make_splitter(train_tokenizer(TokenSettings(kind="characters"), TEXTS)) is keep_whole


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": None},
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}},
        {
            "added_tokens": [
                {
                    "id": 0,
                    "content": "Der Hund",
                    "special": False,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                }
            ]
        },
    ],
)
def test_what_is_not_known_is_left_whole(change):
    known = json.loads(train_tokenizer(KINDS["bpe"], TEXTS).to_json())
    assert make_splitter(Tokenizer(Library.from_str(json.dumps(known)))) is not keep_whole
    assert make_splitter(Tokenizer(Library.from_str(json.dumps({**known, **change})))) is keep_whole
