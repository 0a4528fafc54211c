"""The laws of what is measured of explanations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.explain import faithfulness
from regard.explain.faithfulness import (
    GroundTruth,
    erasure,
    kendall,
    measure_faithfulness,
    permute_weights,
    permuted,
    spearman,
    summarise,
    top_features,
)
from regard.explain.methods import METHODS, attribute
from regard.explain.verdict import permutation_verdict, set_verdict


@pytest.fixture(scope="module")
def trained(tiny_classifier, tiny_target):
    """A classifier that says whether a text has more of the tokens 5 than of the tokens 6; and some texts."""
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
        target = replace(target, places=torch.arange(10))
        targets.append(replace(target, answer=int(target.scores(target.read)[0].argmax())))
    return targets


def test_hiding_what_occlusion_names_costs_more_than_hiding_by_lot(trained):
    rows = [
        measure_faithfulness(target, {"occlusion": METHODS["occlusion"](target)}, seed=number)
        for number, target in enumerate(trained)
    ]
    scores = summarise(rows)
    assert scores["occlusion"]["above lot"].low > 0
    assert scores["occlusion"]["comprehensiveness"].score > scores["by lot"]["comprehensiveness"].high
    assert scores["occlusion"]["sufficiency"].score < scores["by lot"]["sufficiency"].score
    assert "more than tokens drawn by lot" in set_verdict("occlusion", scores["occlusion"])


def test_the_worst_order_is_found_out(trained):
    """The opposite of what occlusion says, and what is found by lot, do not pass."""
    rows = []
    for number, target in enumerate(trained):
        values = METHODS["occlusion"](target)
        rows.append(measure_faithfulness(target, {"occlusion": values, "opposite": -values}, seed=number))
    scores = summarise(rows)["opposite"]
    assert scores["above lot"].high < 0 and scores["spearman"].score == pytest.approx(-1)
    assert "less than tokens drawn by lot" in set_verdict("opposite", scores)


def test_an_explanation_that_knows_positions_only_fails_the_control_with_random_weights(trained, tiny_classifier, monkeypatch):
    monkeypatch.setitem(METHODS, "position", lambda target: torch.arange(len(target.places)).double())
    fresh, methods = tiny_classifier("mean").float(), ("position", "occlusion")
    rows = [measure_faithfulness(target, attribute(target, methods)[0], fresh=fresh) for target in trained]
    scores = summarise(rows)
    assert scores["position"]["fresh"].score == pytest.approx(1)
    assert abs(scores["occlusion"]["fresh"].score) < 0.3
    assert "does not show what this one has learned" in set_verdict("position", scores["position"])
    assert "does not show" not in set_verdict("occlusion", scores["occlusion"])


def test_erasure_is_the_written_out_difference(trained):
    target, values = trained[0], torch.arange(10).double()
    without, alone = erasure(target, [values])
    p = target.whole().exp()
    for k, share in enumerate(faithfulness.TOP_PERCENTS):
        number = max(1, -(-10 * share // 100))
        hidden, others = target.read.clone(), target.read.clone()
        hidden[0, 10 - number :] = target.stand_in
        others[0, : 10 - number] = target.stand_in
        assert without[0, k] == pytest.approx(float(p - target.said(hidden).detach().exp()), abs=1e-6)
        assert alone[0, k] == pytest.approx(float(p - target.said(others).detach().exp()), abs=1e-6)
    assert top_features(values, 100).all()


def test_permuting_keeps_what_a_row_has_and_what_it_may_not_see():
    weights = torch.rand(2, 3, 5, 7)
    weights[..., 4:] = 0  # padding
    changed = permute_weights(weights, torch.Generator().manual_seed(0))
    assert torch.equal(changed[..., 4:], weights[..., 4:])
    assert torch.equal(changed.sort(-1).values, weights.sort(-1).values)
    assert not torch.equal(changed, weights)


def test_permuting_weights_that_are_all_the_same_changes_nothing(trained, kinds):
    target = kinds["classifier"]()
    assert permuted(target) > 1e-3
    with torch.no_grad():
        for block in target.model.encoder.stack.blocks:
            block.self_attention.q_proj.weight.zero_()
            block.self_attention.q_proj.bias.zero_()
    assert permuted(target) < 1e-9
    score = summarise([{"": {"permuted": permuted(target)}}] * 2)[""]["permuted"]
    assert "explain little" in permutation_verdict(score)


def test_correlations_of_orders():
    one = torch.tensor([3.0, 1.0, 2.0, 5.0])
    assert spearman(one, one.exp()) == pytest.approx(1) and kendall(one, one.exp()) == pytest.approx(1)
    assert spearman(one, -one) == pytest.approx(-1) and kendall(one, -one) == pytest.approx(-1)
    assert kendall(torch.tensor([1.0, 2, 3]), torch.tensor([1.0, 3, 2])) == pytest.approx(1 / 3)
    assert np.isnan(spearman(one[:2], one[:2])) and kendall(one, torch.zeros(4)) == 0


def test_the_gold_token_counts_when_it_is_named_first(trained):
    target = trained[0]
    values = torch.arange(10).double()
    gold = {
        "alignment": GroundTruth(frozenset({8, 9}), tuple(range(10))),
        "antecedent": GroundTruth(frozenset({2}), (1, 2)),
        "wrong": GroundTruth(frozenset({1}), (1, 2)),
    }
    found = measure_faithfulness(target, {"last": values}, gold=gold)
    assert [found["last"][name] for name in gold] == [1, 1, 0]
    assert [found["by lot"][name] for name in gold] == [0.2, 0.5, 0.5]
