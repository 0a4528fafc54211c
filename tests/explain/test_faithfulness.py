"""Laws of the faithfulness measures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard.explain.faithfulness import (
    MAX_COUNT,
    TOP_PERCENTS,
    GroundTruth,
    completeness,
    erasure,
    erasure_steps,
    kendall,
    measure_faithfulness,
    permutation_effect,
    permute_weights,
    spearman,
    summarise,
    top_features,
)
from regard.explain.methods import METHODS, attribute, integrated_gradients
from regard.explain.verdict import (
    format_change,
    format_number,
    format_probability,
    permutation_verdict,
    set_verdict,
    single_verdict,
)


@pytest.fixture(scope="module")
def trained(tiny_classifier, tiny_target):
    """A classifier of whether a text has more tokens 5 than tokens 6, and some texts."""
    torch.manual_seed(0)
    model = tiny_classifier("mean").float()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        source = torch.randint(3, 13, (64, 10))  # with the replacement, 3, among the tokens
        more = ((source == 5).sum(1) > (source == 6).sum(1)).long()
        optimizer.zero_grad()
        F.cross_entropy(model(source, torch.full((64,), 10)), more).backward()
        optimizer.step()
    targets = []
    while len(targets) < 30:
        target = tiny_target(model.eval(), 10)
        target = replace(target, positions=torch.arange(10))
        target = replace(target, output=int(target.scores(target.input)[0].argmax()))
        if int((target.input == 5).sum() - (target.input == 6).sum()) == 1:  # every 5 is needed: none is redundant
            targets.append(target)
    return targets


def test_occlusion_beats_the_random_baseline(trained):
    rows = [
        measure_faithfulness(target, {"occlusion": METHODS["occlusion"](target)}, seed=number)
        for number, target in enumerate(trained)
    ]
    scores = summarise(rows)
    assert scores["occlusion"]["above random"].low > 0
    assert scores["occlusion"]["comprehensiveness"].score > scores["random"]["comprehensiveness"].high
    assert scores["occlusion"]["sufficiency"].score < scores["random"]["sufficiency"].score
    assert "matter more to the output than random tokens" in set_verdict("occlusion", scores["occlusion"])


def test_reversed_occlusion_is_worse_than_random(trained):
    rows = []
    for number, target in enumerate(trained):
        values = METHODS["occlusion"](target)
        rows.append(measure_faithfulness(target, {"occlusion": values, "opposite": -values}, seed=number))
    scores = summarise(rows)["opposite"]
    assert scores["above random"].high < 0 and scores["spearman"].score == pytest.approx(-1)
    assert "matter less to the output than random tokens" in set_verdict("opposite", scores)


def test_attribution_by_position_fails_the_randomization_test(trained, tiny_classifier, monkeypatch):
    monkeypatch.setitem(METHODS, "position", lambda target: torch.arange(len(target.positions)).double())
    randomized, methods = tiny_classifier("mean").float(), ("position", "occlusion")
    rows = [measure_faithfulness(target, attribute(target, methods)[0], randomized=randomized) for target in trained]
    scores = summarise(rows)
    assert scores["position"]["randomized"].score == pytest.approx(1)
    assert abs(scores["occlusion"]["randomized"].score) < 0.3
    assert "does not show what this one has learned" in set_verdict("position", scores["position"])
    assert "does not show" not in set_verdict("occlusion", scores["occlusion"])


def test_erasure_equals_the_difference_of_log_probabilities(trained):
    target, values = trained[0], torch.arange(10).double()
    without, alone = erasure(target, [values, values])
    whole = target.full_score()
    for k, number in enumerate(range(1, MAX_COUNT + 1)):
        hidden, others = target.input.clone(), target.input.clone()
        hidden[0, 10 - number :] = target.replacement
        others[0, : 10 - number] = target.replacement
        assert without[0, k] == pytest.approx(float(whole - target.score(hidden).detach()), abs=1e-5) == without[1, k]
        assert alone[0, k] == pytest.approx(float(whole - target.score(others).detach()), abs=1e-5) == alone[1, k]
    assert top_features(values, 10).all() and top_features(values, 2).tolist() == [False] * 8 + [True] * 2


@given(st.integers(1, 400))
def test_no_two_steps_of_erasure_mask_the_same_number_of_features(features):
    steps = erasure_steps(features)
    assert len(set(steps.values())) == len(steps) and all(1 <= count <= features for count in steps.values())
    assert list(steps) == [f"{percent}%" for percent in TOP_PERCENTS] or list(map(int, steps)) == list(steps.values())
    assert (features > 20) == ("1%" in steps)


def test_verdict_names_the_faithful_method_and_what_the_other_misses(trained):
    for target in trained:
        occluded = METHODS["occlusion"](target)
        values = {"opposite": -occluded, "occlusion": occluded}
        measured, features = measure_faithfulness(target, values), [f"word{i}" for i in range(10)]
        verdict = single_verdict(features, {name: numbers.tolist() for name, numbers in values.items()}, measured)
        if measured["occlusion"]["advantage"] < 0.05:
            continue
        random = format_number(measured["random"]["comprehensiveness"])
        assert verdict.best == "occlusion" and f"random tokens: {random}" in verdict.headline
        assert "do not believe it here" in verdict.methods["opposite"] and ": the best here" in verdict.methods["occlusion"]
        if occluded.max() > 0.1:
            assert f"ranks 'word{int(occluded.argmax())}' 10 of 10" in verdict.methods["opposite"]


def test_verdict_believes_no_method_if_nothing_matters():
    row = {"comprehensiveness": 0.0, "sufficiency": 0.0}
    measured = {"occlusion": row | {"above random": 0.0, "below random": 0.0, "advantage": 0.0}, "random": row}
    verdict = single_verdict(["a", "b"], {"occlusion": [0.0, 0.0]}, measured)
    assert verdict.best is None and "do not believe any" in verdict.headline


def test_completeness_residual_is_small_and_grows_with_fewer_points(trained):
    for target in trained[:3]:
        few, many = (completeness(target, integrated_gradients(target, points)) for points in (1, 64))
        assert many["score above baseline"] == few["score above baseline"]
        assert many["completeness residual"] < min(0.1, few["completeness residual"] / 10)


def test_numbers_have_no_minus_before_zero_and_no_vanished_probability():
    assert format_number(-0.001) == "0.00" and format_number(-0.2) == "-0.20"
    assert format_change(-0.2, "nats") == "rises by 0.20 nats" and format_change(1.0, "nats") == "falls by 1.00 nats"
    assert format_change(-1e-4, "nats") == "does not change"
    shown = [format_probability(p) for p in (1e-9, 0.0012, 0.5, 0.99999, 1.0)]
    assert shown == ["< 0.0001", "0.0012", "0.500", "> 0.999", "1.000"]


def test_permuting_keeps_the_weights_of_a_row_and_masked_keys():
    weights = torch.rand(2, 3, 5, 7)
    weights[..., 4:] = 0  # padding
    changed = permute_weights(weights, torch.Generator().manual_seed(0))
    assert torch.equal(changed[..., 4:], weights[..., 4:])
    assert torch.equal(changed.sort(-1).values, weights.sort(-1).values)
    assert not torch.equal(changed, weights)


def test_permuting_uniform_weights_changes_nothing(trained, kinds):
    target = kinds["classifier"]()
    assert permutation_effect(target) > 1e-3
    with torch.no_grad():
        for block in target.model.encoder.stack.blocks:
            block.self_attention.q_proj.weight.zero_()
            block.self_attention.q_proj.bias.zero_()
    assert permutation_effect(target) < 1e-9
    score = summarise([{"": {"permutation effect": permutation_effect(target)}}] * 2)[""]["permutation effect"]
    assert "explain little" in permutation_verdict(score)


def test_rank_correlations():
    one = torch.tensor([3.0, 1.0, 2.0, 5.0])
    assert spearman(one, one.exp()) == pytest.approx(1) and kendall(one, one.exp()) == pytest.approx(1)
    assert spearman(one, -one) == pytest.approx(-1) and kendall(one, -one) == pytest.approx(-1)
    assert kendall(torch.tensor([1.0, 2, 3]), torch.tensor([1.0, 3, 2])) == pytest.approx(1 / 3)
    assert np.isnan(spearman(one[:2], one[:2])) and kendall(one, torch.zeros(4)) == 0


def test_ground_truth_counts_the_top_candidate(trained):
    target = trained[0]
    values = torch.arange(10).double()
    truth = {
        "alignment": GroundTruth(frozenset({8, 9}), tuple(range(10))),
        "antecedent": GroundTruth(frozenset({2}), (1, 2)),
        "wrong": GroundTruth(frozenset({1}), (1, 2)),
    }
    found = measure_faithfulness(target, {"last": values}, truth=truth)
    assert [found["last"][name] for name in truth] == [1, 1, 0]
    assert [found["random"][name] for name in truth] == [0.2, 0.5, 0.5]
