"""Laws of the translation scores: sacreBLEU's numbers with intervals, and significance tests without false alarms."""

import math
import random
import warnings
from itertools import pairwise

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring.translation import _bins, compare_systems, score_by_length, translation_scores

WORDS = [a + b for a in ("ka", "lo", "mi", "ne", "pu") for b in ("ra", "sa", "ti", "vo", "x")]


def corpus(n, seed=0, shortest=4, longest=14):
    pick = random.Random(seed)
    return [" ".join(pick.choice(WORDS) for _ in range(pick.randint(shortest, longest))) for _ in range(n)]


def corrupt(sentences, fraction, seed=1):
    """Each word replaced with probability `fraction`."""
    pick = random.Random(seed)
    return [" ".join(pick.choice(WORDS) if pick.random() < fraction else w for w in s.split()) for s in sentences]


REFERENCES = corpus(200)
OUTPUT = corrupt(REFERENCES, 0.2)


def test_references_scored_against_themselves_are_perfect():
    scores = translation_scores(REFERENCES, REFERENCES, samples=50)
    for name, best in (("bleu", 100), ("chrf", 100), ("ter", 0)):
        assert (scores[name].low, scores[name].score, scores[name].high) == pytest.approx((best, best, best))


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, corrupt(REFERENCES, 0.4, seed=5)]])
def test_scores_equal_sacrebleu(references):
    scores = translation_scores(OUTPUT, references, metrics=("bleu", "chrf", "chrf++", "ter"), samples=20)
    assert scores["bleu"].score == sacrebleu.corpus_bleu(OUTPUT, references).score
    assert scores["chrf"].score == sacrebleu.corpus_chrf(OUTPUT, references).score
    assert scores["chrf++"].score == sacrebleu.corpus_chrf(OUTPUT, references, word_order=2).score
    assert scores["ter"].score == sacrebleu.corpus_ter(OUTPUT, references).score


def test_interval_is_sacrebleus_mean_and_half_width():
    metric = sacrebleu.BLEU()
    theirs = metric.corpus_score(OUTPUT, [REFERENCES], n_bootstrap=100)
    ours = translation_scores(OUTPUT, REFERENCES, metrics=["bleu"], samples=100)["bleu"]
    assert ours.signature == str(metric.get_signature())
    assert f"{(ours.low + ours.high) / 2:.3f} ± {(ours.high - ours.low) / 2:.3f}" in theirs.format(width=3)


def test_one_list_of_references_equals_a_list_of_one_list():
    assert translation_scores(OUTPUT, REFERENCES, samples=20) == translation_scores(OUTPUT, [REFERENCES], samples=20)


def test_signatures_name_case_tokenizer_references_and_version():
    scores = translation_scores(OUTPUT, REFERENCES, samples=50)
    for part in ("nrefs:1", "bs:50", "case:mixed", "tok:13a", f"version:{sacrebleu.__version__}"):
        assert part in scores["bleu"].signature.split("|")
    assert "case:lc" in scores["ter"].signature and "nc:6" in scores["chrf"].signature


def test_intervals_hold_the_score_and_shrink():
    references = corpus(1600)
    outputs = corrupt(references, 0.2)
    narrow = translation_scores(outputs, references, samples=100)
    wide = translation_scores(outputs[:50], references[:50], samples=100)
    for name in ("bleu", "chrf", "ter"):
        assert narrow[name].low < narrow[name].score < narrow[name].high
        assert wide[name].low < wide[name].score < wide[name].high
        assert narrow[name].high - narrow[name].low < (wide[name].high - wide[name].low) / 3


def test_interval_if_only_some_resamples_match():
    scores = translation_scores(["", ""], ["", "a"], samples=40)  # sacreBLEU 2.6 alone: TypeError
    assert scores["chrf"].score == 0 and scores["ter"].low < scores["ter"].score == 100


sentences = st.text(alphabet="ab .é", max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=5))
def test_any_text_scores_within_its_interval_and_range(pairs):
    outputs, references = map(list, zip(*pairs))
    for name, score in translation_scores(outputs, references, samples=10).items():
        assert 0 <= score.low <= score.score <= score.high and math.isfinite(score.high)
        assert name == "ter" or score.high < 100 + 1e-9


def test_scores_do_not_depend_on_the_order_of_sentences():
    order = random.Random(3).sample(range(200), 200)
    shuffled = translation_scores([OUTPUT[i] for i in order], [REFERENCES[i] for i in order], samples=10)
    straight = translation_scores(OUTPUT, REFERENCES, samples=10)
    assert {k: s.score for k, s in shuffled.items()} == pytest.approx({k: s.score for k, s in straight.items()}, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: translation_scores(["a"], ["a", "b"]), "1 hypotheses but 2 references"),
        (lambda: translation_scores(["a"], [["a"], ["a", "b"]]), "1 hypotheses but 2 references in list 2"),
        (lambda: translation_scores([], []), "empty"),
        (lambda: translation_scores([], [[]]), "empty"),
        (lambda: translation_scores(["a"], ["a"], metrics=["blue"]), "did you mean 'bleu'"),
        (lambda: translation_scores(["a"], ["a"], samples=1), "samples = 1"),
        (lambda: score_by_length(["a", "b"], ["a"], ["a"]), "2 sources but 1 hypotheses"),
        (lambda: score_by_length(["a"], ["a"], ["a"], bins=0), "bins = 0"),
        (lambda: compare_systems({"one": ["a"], "two": ["a", "b"]}, ["a"]), "2 hypotheses of two but 1 references"),
        (lambda: compare_systems({"one": ["a"]}, ["a"]), "1 system to compare"),
        (lambda: compare_systems({"one": ["a"], "two": ["a"]}, ["a"], test="t"), "no test 't'"),
    ],
)
def test_user_errors_are_one_line(call, words):
    with pytest.raises(UserError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_very_large_set_is_resampled_less_with_a_warning(monkeypatch):
    monkeypatch.setattr("regard.scoring.translation.MAX_DRAWS", 30_000)
    with pytest.warns(UserWarning, match="150 resamples instead of 1000"):
        score = translation_scores(OUTPUT, REFERENCES, metrics=["chrf"])["chrf"]
    assert "bs:150" in score.signature
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translation_scores(OUTPUT, REFERENCES, metrics=["chrf"], samples=100)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=300), st.integers(1, 8), st.integers(1, 40))
def test_length_bins_hold_all_sentences_and_none_is_too_small(lengths, bins, least):
    found = _bins(lengths, bins, least)
    counts = [sum(low <= n <= high for n in lengths) for low, high in found]
    assert sum(counts) == len(lengths) and 1 <= len(found) <= bins
    assert all(low <= high for low, high in found) and all(a[1] < b[0] for a, b in pairwise(found))
    assert min(counts) >= min(least, len(lengths))


def test_score_by_length_is_bleu_of_each_bin():
    references = corpus(300, shortest=1, longest=20)
    outputs = [r if len(r.split()) <= 10 else s for r, s in zip(references, corrupt(references, 0.5))]
    rows = score_by_length(references, outputs, references, bins=4, samples=50)
    assert 2 <= len(rows) <= 4 and sum(row["count"] for row in rows) == 300
    assert rows[0]["score"] == pytest.approx(100) and rows[-1]["ci_high"] < 60  # words too few for 4-grams still score
    last = [i for i, r in enumerate(references) if rows[-1]["low"] <= len(r.split()) <= rows[-1]["high"]]
    theirs = sacrebleu.corpus_bleu([outputs[i] for i in last], [[references[i] for i in last]])
    assert rows[-1]["score"] == theirs.score and rows[-1]["count"] == len(last)
    assert all(row["ci_low"] <= row["score"] <= row["ci_high"] and "eff:yes" in row["signature"] for row in rows)


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_significance_test_finds_only_the_worse_system(test):
    systems = {"base": OUTPUT, "twin": list(OUTPUT), "worse": corrupt(OUTPUT, 0.2, seed=9)}
    rows = compare_systems(systems, REFERENCES, test=test, samples=200)
    assert [(row["system"], row["metric"]) for row in rows] == [(s, m) for s in systems for m in ("bleu", "chrf")]
    assert all(row["p_value"] is None for row in rows[:2])
    assert all(row["p_value"] > 0.05 for row in rows[2:4])
    assert all(row["p_value"] < 0.05 for row in rows[4:])
    assert all(abs(row["score"] - row["mean"]) < row["ci"] for row in rows)
    singly = translation_scores(systems["worse"], REFERENCES, metrics=("bleu", "chrf"), samples=10)
    assert [row["score"] for row in rows[4:]] == [score.score for score in singly.values()]
    assert ("ar:200" if test == "randomization" else "bs:200") in rows[0]["signature"]


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_one_changed_sentence_is_not_significant(test):
    almost = ["something else entirely", *OUTPUT[1:]]
    rows = compare_systems({"base": OUTPUT, "almost": almost}, REFERENCES, test=test, samples=200)
    assert all(row["p_value"] > 0.05 for row in rows[2:])
