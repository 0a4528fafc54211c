"""Laws of segmentation: chunks have the ids of their text, for any tokenizer and text; BPE-dropout is BPE with merges skipped."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from regard.recipe import TokenSettings
from regard.tokens.segmentation import BpeSegmenter, keep_whole, make_splitter, split_words
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
def test_ids_of_chunks_concatenate_to_the_ids_of_the_text(tokenizer, text):
    chunks = make_splitter(tokenizer)(text)
    assert [i for ids in tokenizer.encode(chunks) for i in ids] == tokenizer.encode([text])[0]


def test_texts_are_split_into_words(tokenizer):
    assert [chunk.strip() for chunk in make_splitter(tokenizer)("Der Hund")] == ["Der", "Hund"]


def test_character_tokenizer_keeps_texts_whole():
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
def test_unknown_tokenizer_steps_keep_texts_whole(change):
    known = json.loads(train_tokenizer(KINDS["bpe"], TEXTS).to_json())
    assert make_splitter(Tokenizer(Library.from_str(json.dumps(known)))) is not keep_whole
    assert make_splitter(Tokenizer(Library.from_str(json.dumps({**known, **change})))) is keep_whole


BPE_PAIRS = bilingual.generate(600, 5, level=1)
BPE_TEXTS = [pair.source for pair in BPE_PAIRS] + [pair.target for pair in BPE_PAIRS]


@pytest.fixture(scope="module")
def bpe():
    return train_tokenizer(TokenSettings(kind="bpe", size=400), BPE_TEXTS)


def test_bpe_segmenter_without_dropout_equals_the_library(bpe):
    segmenter, chance = BpeSegmenter.from_tokenizer(bpe), random.Random(0)
    for ids, words in zip(bpe.encode(BPE_TEXTS), split_words(bpe, BPE_TEXTS)):
        assert [i for word in words for i in segmenter.segment(word, chance, 0.0)] == ids


def segment_by_the_paper(segmenter, word, chance, dropout):
    """Algorithm 1 of Provilkov et al. 2020, written out: in every round all merges are found anew."""
    pieces = list(word)
    while ranked := [
        (segmenter.ranks[pair], i)
        for i, pair in enumerate(pairwise(pieces))
        if pair in segmenter.ranks and chance.random() >= dropout
    ]:
        _, i = min(ranked)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return [segmenter.vocabulary[piece] for piece in pieces]


@given(st.sampled_from(BPE_TEXTS), st.integers(0, 1000), st.floats(0.0, 1.0))
def test_bpe_dropout_equals_the_algorithm_written_out(bpe, text, seed, dropout):
    segmenter = BpeSegmenter.from_tokenizer(bpe)
    for word in split_words(bpe, [text])[0]:
        expected = segment_by_the_paper(segmenter, word, random.Random(seed), dropout)
        assert segmenter.segment(word, random.Random(seed), dropout) == expected


@given(st.sampled_from(BPE_TEXTS), st.integers(0, 1000), st.floats(0.05, 0.95))
def test_bpe_dropout_never_changes_the_text(bpe, text, seed, dropout):
    segmenter, chance = BpeSegmenter.from_tokenizer(bpe), random.Random(seed)
    ids = [i for word in split_words(bpe, [text])[0] for i in segmenter.segment(word, chance, dropout)]
    assert bpe.decode([ids]) == [text]
    assert len(ids) >= len(bpe.encode([text])[0])


def test_bpe_variants_are_a_function_of_seed_and_word(bpe):
    segmenter = BpeSegmenter.from_tokenizer(bpe)
    assert segmenter.variants("▁Schmetterling", 20, 1, 0.3) == segmenter.variants("▁Schmetterling", 20, 1, 0.3)
    assert segmenter.variants("▁Schmetterling", 20, 1, 0.3) != segmenter.variants("▁Schmetterling", 20, 2, 0.3)
    assert len({tuple(ids) for ids in segmenter.variants("▁Schmetterling", 20, 1, 0.3)}) > 3
