"""Laws of word alignment and its error rate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.alignment import (
    alignment_error,
    argmax_links,
    best_head,
    format_moses,
    merge_words,
    parse_moses,
    uniform_alignment_error,
)

alignments = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)
corpora = st.lists(alignments.filter(bool), min_size=1, max_size=8)


@given(alignments)
def test_parse_moses_inverts_format_moses(pairs):
    assert parse_moses(format_moses(pairs)) == (pairs, set())
    assert format_moses({(10, 0), (2, 1), (2, 0)}) == "2-0 2-1 10-0"  # in order, as numbers


@pytest.mark.parametrize("text", ["0-0 1:2", "0", "1-", "0?", "0P1", "0-1p", "-1-2", "a-b", "0-0-0", "²-1"])
def test_malformed_link_is_refused_with_its_location(text):
    with pytest.raises(UserError, match=r"^gold\.txt:7: '.*' is not a link") as error:
        parse_moses(text, "gold.txt:7")
    assert "\n" not in str(error.value)


def test_parse_moses_tells_sure_from_possible_links():
    assert parse_moses("0-0 1?2 3p1 1-2") == ({(0, 0), (1, 2)}, {(3, 1)})  # sure is possible too


def test_possible_links_are_neither_required_nor_wrong():
    """Och & Ney 2003, eq. 19: A = 0-0 1-1, S = 0-0 2-2, P = S and 1-1: 1 - (1 + 2) / (2 + 2)."""
    said, sure, possible = [{(0, 0), (1, 1)}], [{(0, 0), (2, 2)}], [{(1, 1)}]
    assert alignment_error(said, sure, possible, samples=5).score == 1 / 4 < alignment_error(said, sure, samples=5).score == 1 / 2
    assert alignment_error([sure[0] | possible[0]], sure, possible, samples=5).score == 0
    assert "gold:sure+possible" in alignment_error(said, sure, possible, samples=5).signature
    weights = np.zeros((1, 2, 3, 3))
    weights[0, 0, [0, 1], [2, 0]] = weights[0, 1, [0, 1], [0, 1]] = 1
    (place, score) = best_head([weights], sure, possible, samples=5)
    assert place == (0, 1) and score.score == 1 / 4


@settings(max_examples=30, deadline=None)
@given(corpora)
def test_aer_is_zero_for_gold_and_one_for_disjoint_links(gold):
    perfect, hopeless = (alignment_error(a, gold, samples=20) for a in (gold, [{(s + 10, t) for s, t in g} for g in gold]))
    assert (perfect.low, perfect.score, perfect.high) == (0, 0, 0)
    assert (hopeless.low, hopeless.score, hopeless.high) == (1, 1, 1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(alignments, alignments), min_size=1, max_size=8), st.randoms())
def test_aer_is_one_minus_f1_and_symmetric(pairs, random):
    predicted, gold = map(list, zip(*pairs))
    score = alignment_error(predicted, gold, samples=20)
    right, a, g = sum(len(x & y) for x, y in pairs), sum(map(len, predicted)), sum(map(len, gold))
    f1 = 2 * (right / a) * (right / g) / (right / a + right / g) if right else float(a + g == 0)
    assert score.score == pytest.approx(1 - f1) and score.low <= score.score <= score.high
    assert alignment_error(gold, predicted, samples=20).score == score.score
    random.shuffle(pairs)
    predicted, gold = map(list, zip(*pairs))
    assert alignment_error(predicted, gold, samples=20).score == score.score


def noisy(n, share, seed=0):
    """Gold diagonals of ten words, and predictions with about a share of the links moved."""
    generator = np.random.default_rng(seed)
    gold = [{(i, i) for i in range(10)} for _ in range(n)]
    return [{(s + 20 * (generator.random() < share), t) for s, t in g} for g in gold], gold


def test_aer_interval_holds_the_score_and_shrinks():
    wide, narrow = (alignment_error(*noisy(n, 0.3), samples=300) for n in (20, 2000))
    assert all(s.low < s.score < s.high for s in (wide, narrow))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 4


@pytest.mark.parametrize(("a", "g", "words"), [([set()], [], "1 alignments but 0 gold"), ([], [], "empty")])
def test_sets_of_different_sizes_are_refused(a, g, words):
    with pytest.raises(UserError, match=words):
        alignment_error(a, g)


def words_of(draw, most):
    """Word index of every sub-word: each word has one to three pieces, specials anywhere between."""
    pieces = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most))
    index = [w for w, n in enumerate(pieces) for _ in range(n)]
    for place in draw(st.lists(st.integers(0, len(index)), max_size=2)):
        index.insert(place, -1)
    return index


@st.composite
def attention(draw):
    target, source = words_of(draw, 5), words_of(draw, 5)
    weights = np.random.default_rng(draw(st.integers(0, 999))).dirichlet(np.full(len(source), 0.3), len(target))
    return weights, target, source


@settings(max_examples=60, deadline=None)
@given(attention())
def test_merge_words_conserves_mass(case):
    weights, target, source = case
    merged = merge_words(weights, target, source)
    assert merged.shape == (max(target) + 1, max(source) + 1)
    total = merged.sum(axis=1)
    assert np.allclose(total[total > 0], 1) and (merged >= 0).all()
    for t in range(max(target) + 1):
        rows = weights[[i for i, w in enumerate(target) if w == t]].mean(axis=0)
        real = sum(x for x, s in zip(rows, source) if s >= 0)
        for s in range(max(source) + 1):
            share = sum(x for x, w in zip(rows, source) if w == s)
            assert merged[t, s] * real == pytest.approx(share, abs=1e-12)


def test_merge_words_keeps_whole_words():
    weights = np.random.default_rng(0).dirichlet(np.ones(4), 3)
    np.testing.assert_allclose(merge_words(weights, [0, 1, 2], [0, 1, 2, 3]), weights)


def test_word_that_attends_to_special_tokens_only_has_no_link():
    weights = np.array([[0.0, 0.0, 1.0], [0.1, 0.3, 0.6], [0.5, 0.5, 0.0]])  # <s> at source 2, </s> at target 2
    merged = merge_words(weights, [0, 1, -1], [0, 1, -1])
    np.testing.assert_allclose(merged, [[0, 0], [0.25, 0.75]])
    assert argmax_links(merged) == {(1, 1)}


def test_argmax_links_take_the_most_attended_source_word():
    assert argmax_links(np.array([[0.1, 0.9], [0.6, 0.4], [0.5, 0.5]])) == {(1, 0), (0, 1), (0, 2)}
    assert argmax_links(np.zeros((3, 2))) == argmax_links(np.zeros((3, 0))) == set()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_best_head_equals_brute_force(seed):
    generator = np.random.default_rng(seed)
    shapes = [(int(t), int(s)) for t, s in generator.integers(0, 6, (4, 2))]
    weights = [generator.random((2, 3, t, s)) * (generator.random((2, 3, t, 1)) > 0.2) for t, s in shapes]
    gold, possible = ([{(int(a), int(b)) for a, b in generator.integers(0, 7, (4, 2))} for _ in shapes] for _ in range(2))
    (layer, head), score = best_head(weights, gold, possible, samples=5)
    scores = {
        (i, j): alignment_error([argmax_links(w[i, j]) for w in weights], gold, possible, samples=5)
        for i in range(2)
        for j in range(3)
    }
    assert (layer, head) == min(scores, key=lambda key: scores[key].score) and score == scores[layer, head]


def test_best_head_finds_the_alignment_and_beats_the_diagonal():
    generator = np.random.default_rng(3)
    orders = [generator.permutation(8) for _ in range(20)]
    gold = [{(int(s), t) for t, s in enumerate(order)} for order in orders]
    weights = [generator.random((3, 4, 8, 8)) for _ in orders]
    for w, order in zip(weights, orders):
        w[1, 2, np.arange(8), order] = 2.0
    place, score = best_head(weights, gold)
    assert place == (1, 2) and score.score == 0
    assert uniform_alignment_error([(8, 8)] * 20, gold).low > 0.5


def test_uniform_baseline_is_the_diagonal_inside_the_source():
    assert uniform_alignment_error([(5, 5)], [{(i, i) for i in range(5)}]).score == 0
    assert uniform_alignment_error([(4, 2)], [{(0, 0), (1, 1), (1, 2), (1, 3)}]).score == 0  # 0, .5, 1, 1.5 -> 0, 1, 1, 1
    assert uniform_alignment_error([(2, 0)], [{(0, 0)}]).score == 1
