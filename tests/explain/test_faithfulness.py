"""Laws of the faithfulness measures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.explain.faithfulness import (
    TOP_PERCENTS,
    GroundTruth,
    erasure,
    kendall,
    measure_faithfulness,
    permutation_effect,
    permute_weights,
    spearman,
    summarise,
    top_features,
)
from regard.explain.methods import METHODS, attribute
from regard.explain.verdict import permutation_verdict, set_verdict


@pytest.fixture(scope="module")
def trained(tiny_classifier, tiny_target):
    """A classifier of whether a text has more tokens 5 than tokens 6, and some texts."""
    torch.manual_seed(0)
    model = tiny_classifier("mean").float()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        source = torch.randint(4, 13, (64, 10))
        more = ((source == 5).sum(1) > (source == 6).sum(1)).long()
        optimizer.zero_grad()
        F.cross_entropy(model(source, torch.full((64,), 10)), more).backward()
        optimizer.step()
    targets = []
    for _ in range(30):
        target = tiny_target(model.eval(), 10)
        target = replace(target, positions=torch.arange(10))
        targets.append(replace(target, output=int(target.scores(target.input)[0].argmax())))
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


def test_erasure_equals_the_probability_difference(trained):
    target, values = trained[0], torch.arange(10).double()
    without, alone = erasure(target, [values])
    p = target.full_score().exp()
    for k, share in enumerate(TOP_PERCENTS):
        number = max(1, -(-10 * share // 100))
        hidden, others = target.input.clone(), target.input.clone()
        hidden[0, 10 - number :] = target.replacement
        others[0, : 10 - number] = target.replacement
        assert without[0, k] == pytest.approx(float(p - target.score(hidden).detach().exp()), abs=1e-6)
        assert alone[0, k] == pytest.approx(float(p - target.score(others).detach().exp()), abs=1e-6)
    assert top_features(values, 100).all()


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
