"""Schedules, losses, optimizers and weight averages."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from regard.batches.batch import IGNORE_INDEX, Batch, MixedLabels
from regard.errors import UserError
from regard.models.captioner import LstmCaptioner
from regard.models.vit import VitClassifier
from regard.recipe import CaptionModel, Regularization, ScheduleSettings, VitModel
from regard.recipe import OptimizerSettings as OptimizerSettings
from regard.training.average import MovingAverage, average_weights
from regard.training.losses import CrossEntropy, SpanLoss, nll, sequence_log_probs, symmetric_kl
from regard.training.optimizer import CombinedOptimizer, Muon, layer_depths, learning_rate_factor

KINDS = ["inverse-sqrt", "cosine", "trapezoid", "constant"]


@given(step=st.integers(1, 100_000), warmup=st.integers(1, 8000), width=st.sampled_from([512, 1024]))
def test_inverse_sqrt_schedule_is_the_papers_formula(step, warmup, width):
    """width^-0.5 · min(step^-0.5, step · warmup^-1.5), with the peak (width · warmup)^-0.5 (sec. 5.3, eq. 3)."""
    peak = (width * warmup) ** -0.5
    published = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert math.isclose(
        peak * learning_rate_factor(step, 100_000, ScheduleSettings(kind="inverse-sqrt", warmup_steps=warmup)),
        published,
        rel_tol=1e-9,
    )


@pytest.mark.parametrize("kind", KINDS)
@given(warmup=st.integers(0, 100), steps=st.integers(101, 1000), final=st.floats(0, 0.5))
def test_schedules_rise_to_the_peak_and_end_at_the_final_fraction(kind, warmup, steps, final):
    schedule = ScheduleSettings(kind=kind, warmup_steps=warmup, final_fraction=final)
    assume(kind != "trapezoid" or warmup <= steps - round(steps * schedule.cooldown_fraction))  # the slopes do not overlap
    rates = [learning_rate_factor(step, steps, schedule) for step in range(1, steps + 1)]
    assert all(0 <= r <= 1 + 1e-12 for r in rates)
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    if kind in ("cosine", "trapezoid"):
        assert rates[-1] == pytest.approx(final, abs=1e-9)


class FixedLogits(nn.Module):
    """A model with given logits, with optional dropout on them."""

    def __init__(self, logits, dropout=0.0):
        super().__init__()
        self.logits, self.dropout = logits, nn.Dropout(dropout)

    def forward(self, source, lengths, target):
        return self.dropout(self.logits.repeat(len(source) // len(self.logits), 1, 1))


ZEROS = torch.zeros(2, 3, dtype=torch.long)
LABELS = torch.tensor([[5, 6, 2], [7, 0, IGNORE_INDEX]])
PAIRS = Batch({"source": ZEROS, "lengths": torch.tensor([3, 3]), "target": ZEROS}, LABELS, np.arange(2))


def test_nll_sums_over_labels_that_are_not_ignored():
    logits = torch.randn(2, 3, 9, dtype=torch.float64)
    log_p = logits.log_softmax(-1)
    expected = -sum(log_p[b, t, LABELS[b, t]] for b in range(2) for t in range(3) if LABELS[b, t] != IGNORE_INDEX)
    torch.testing.assert_close(nll(log_p, LABELS).sum(), expected, atol=1e-5, rtol=0)
    smoothed = 0.9 * expected - 0.1 * sum(log_p[b, t].mean() for b in range(2) for t in range(3) if LABELS[b, t] != IGNORE_INDEX)
    torch.testing.assert_close(nll(log_p, LABELS, 0.1).sum(), smoothed, atol=1e-5, rtol=0)


class FixedSpanLogits(nn.Module):
    """A model with given logits (B, 2, S) of positions, -inf behind the end, with optional dropout on them."""

    def __init__(self, logits, dropout=0.0):
        super().__init__()
        self.logits, self.dropout = nn.Parameter(logits), nn.Dropout(dropout)

    def forward(self, source, lengths):
        logits = self.dropout(self.logits[:, :, : source.size(1)].repeat(len(source) // len(self.logits), 1, 1))
        return logits.masked_fill(torch.arange(source.size(1)) >= lengths[:, None, None], -torch.inf)


@pytest.mark.parametrize("smoothing, r_drop", [(0.0, 0.0), (0.2, 0.0), (0.2, 3.0)])
def test_span_loss_is_independent_of_padding(smoothing, r_drop):
    lengths, labels, logits = torch.tensor([6, 3]), torch.tensor([[1, 4], [0, 2]]), torch.randn(2, 2, 9)
    found = []
    for padded in (6, 9):
        model = FixedSpanLogits(logits.clone())
        batch = Batch({"source": torch.zeros(2, padded, dtype=torch.long), "lengths": lengths}, labels, np.arange(2))
        loss = SpanLoss(Regularization(label_smoothing=smoothing, r_drop=r_drop))(model, batch)
        loss.backward()
        assert model.logits.grad.isfinite().all() and (model.logits.grad[1, :, 3:] == 0).all()
        found.append((loss.item(), model.logits.grad[:, :, :6]))
        assert batch.label_count() == 4
    rows = [logits[row, :, :length].log_softmax(-1) for row, length in enumerate(lengths.tolist())]
    log_probs = [row[[0, 1], labels[i]].sum().item() for i, row in enumerate(rows)]
    expected = sum(-(1 - smoothing) * log_p - smoothing * row.mean(-1).sum().item() for log_p, row in zip(log_probs, rows))
    assert [loss for loss, _ in found] == pytest.approx([expected] * 2, abs=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1])
    assert sequence_log_probs(FixedSpanLogits(logits), batch).tolist() == pytest.approx(log_probs, abs=1e-5)


def test_r_drop_of_span_loss_is_finite_and_positive():
    lengths, labels = torch.tensor([6, 3]), torch.tensor([[1, 4], [0, 2]])
    batch = Batch({"source": torch.zeros(2, 9, dtype=torch.long), "lengths": lengths}, labels, np.arange(2))
    model = FixedSpanLogits(torch.randn(2, 2, 9), 0.5).train()
    losses = []
    for r_drop in (1e-9, 4.0):
        torch.manual_seed(1)
        losses.append(SpanLoss(Regularization(r_drop=r_drop))(model, batch))
    assert losses[1] > losses[0] + 0.1 and losses[1].isfinite()


class FixedClassLogits(nn.Module):
    """A model with given logits (B, V)."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, source):
        return self.logits.repeat(len(source) // len(self.logits), 1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_mixed_labels_equal_cross_entropy_with_soft_targets(smoothing, r_drop):
    logits, labels, other = torch.randn(4, 6), torch.tensor([0, 1, 2, 5]), torch.tensor([3, 1, 0, 4])
    weight = torch.tensor([0.3, 0.9, 1.0, 0.0])
    batch = Batch({"source": torch.zeros(4, 1)}, labels, np.arange(4), MixedLabels(other, weight))
    target = nn.functional.one_hot(labels, 6) * weight[:, None] + nn.functional.one_hot(other, 6) * (1 - weight)[:, None]
    torch.testing.assert_close(target.sum(), torch.tensor(float(batch.label_count())))
    expected = nn.functional.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    loss = CrossEntropy(Regularization(label_smoothing=smoothing, r_drop=r_drop))
    torch.testing.assert_close(loss(FixedClassLogits(logits), batch), expected)
    one = Batch(batch.inputs, labels, batch.rows)
    sure = Batch(batch.inputs, labels, batch.rows, MixedLabels(other, torch.ones(4)))
    torch.testing.assert_close(loss(FixedClassLogits(logits), sure), loss(FixedClassLogits(logits), one))
    parts = [
        Batch({"source": torch.zeros(2, 1)}, labels[rows], np.arange(2), MixedLabels(other[rows], weight[rows]))
        for rows in (slice(0, 2), slice(2, 4))
    ]
    split = loss(FixedClassLogits(logits[:2]), parts[0]) + loss(FixedClassLogits(logits[2:]), parts[1])
    torch.testing.assert_close(split, expected)  # accumulation is exact
    assert sum(part.label_count() for part in parts) == batch.label_count() == 4


def test_mixed_labels_move_and_duplicate_with_their_batch():
    batch = Batch(
        {"source": torch.zeros(2, 1)}, torch.tensor([0, 1]), np.arange(2), MixedLabels(torch.tensor([1, 0]), torch.rand(2))
    )
    both = batch.to(torch.device("cpu")).duplicate()
    assert torch.equal(both.mixture.weight, batch.mixture.weight.repeat(2)) and both.mixture.other.tolist() == [1, 0, 1, 0]


def test_r_drop_is_zero_if_both_passes_agree():
    logits = torch.randn(2, 3, 9)
    plain = CrossEntropy(Regularization(label_smoothing=0.1))(FixedLogits(logits), PAIRS)
    torch.testing.assert_close(CrossEntropy(Regularization(label_smoothing=0.1, r_drop=4.0))(FixedLogits(logits), PAIRS), plain)
    unsteady = FixedLogits(logits, dropout=0.5).train()
    torch.manual_seed(1)
    without = CrossEntropy(Regularization(r_drop=1e-9))(unsteady, PAIRS)
    torch.manual_seed(1)
    assert CrossEntropy(Regularization(r_drop=4.0))(unsteady, PAIRS) > without + 0.1


def test_symmetric_kl_is_the_mean_of_both_kl_divergences():
    log_p = torch.randn(4, 3, 9).log_softmax(-1)
    p, q = log_p.chunk(2)
    labels_of_ones = torch.ones(2, 3, dtype=torch.long)
    kl = nn.functional.kl_div
    expected = (kl(p, q, log_target=True, reduction="sum") + kl(q, p, log_target=True, reduction="sum")) / 2
    torch.testing.assert_close(symmetric_kl(log_p, labels_of_ones), expected)
    assert symmetric_kl(log_p, torch.full_like(labels_of_ones, IGNORE_INDEX)) == 0


def test_layer_decay_lowers_the_learning_rate_of_lower_layers():
    names = [
        "encoder.token_embedding.weight",
        "encoder.stack.positions.table.weight",
        "encoder.stack.embedding_norm.weight",
        "encoder.stack.blocks.0.feed_forward.inner.weight",
        "encoder.stack.blocks.1.feed_forward.inner.weight",
        "pool.dense.weight",
        "output.bias",
    ]
    assert list(layer_depths(names).values()) == [3, 3, 3, 2, 1, 0, 0]
    seen = layer_depths(["encoder.class_token", "encoder.patches.weight", "encoder.stack.blocks.0.x.weight", "output.weight"])
    assert list(seen.values()) == [2, 2, 1, 0]
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(5, 4),
            "stack": nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(4, 4)] * 1)}),
            "output": nn.Linear(4, 2),
        }
    )
    settings = OptimizerSettings(learning_rate=0.1, layer_decay=0.5, weight_decay=0.3)
    optimizer = CombinedOptimizer(model, settings)
    optimizer.set_learning_rate(0.5)
    rates = {
        optimizer.names[p]: (group["lr"], group["weight_decay"])
        for group in optimizer.optimizers[0].param_groups
        for p in group["params"]
    }
    assert rates["output.weight"] == (0.05, 0.3) and rates["output.bias"] == (0.05, 0.0)
    assert rates["stack.blocks.0.weight"] == (0.025, 0.3) and rates["words.weight"] == (0.0125, 0.3)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weights_with_a_fraction_of_the_rate_get_that_of_their_longest_name(kind):
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(4, 4)])}), "output": nn.Linear(4, 2)})
    rates = {"encoder": 0.1, "encoder.blocks.0.bias": 0.5}
    settings = OptimizerSettings(kind=kind, learning_rate=0.2, muon_learning_rate=0.4, rates=rates)
    optimizer = CombinedOptimizer(model, settings)
    optimizer.set_learning_rate(0.5)
    found = {
        optimizer.names[p]: group["lr"] for one in optimizer.optimizers for group in one.param_groups for p in group["params"]
    }
    matrix = 0.02 if kind == "muon" else 0.01
    assert found == pytest.approx(
        {"encoder.blocks.0.weight": matrix, "encoder.blocks.0.bias": 0.05, "output.weight": 0.1, "output.bias": 0.1}
    )
    with pytest.raises(
        UserError,
        match=r"train.optimizer.rates.decoder = 0.1: no trained weight has a name with this prefix; prefixes: encoder, output",
    ):
        CombinedOptimizer(model, OptimizerSettings(rates={"decoder": 0.1}))


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.table = nn.Embedding(5, 4)

    def forward(self, x):
        return self.blocks[0](self.table(x))


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_a_skipped_optimizer_step_changes_no_bit(kind):
    model = nn.ModuleDict({"stack": Tiny()})
    optimizer = CombinedOptimizer(model, OptimizerSettings(kind=kind))

    def step(skip, poison=0.0):
        (model["stack"](torch.arange(5)).square().sum() + poison * model["stack"].table.weight.sum()).backward()
        optimizer.step(skip=torch.tensor(skip))
        optimizer.zero_grad()

    step(0.0)
    weights = {name: p.clone() for name, p in model.named_parameters()}
    state = {name: t.clone() for name, t in optimizer.tensors().items()}
    step(1.0, poison=float("nan"))
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert all(torch.equal(t, state[name]) for name, t in optimizer.tensors().items())
    step(0.0)
    assert not any(torch.equal(p, weights[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_a_loaded_optimizer_continues_bit_exactly(kind):
    torch.manual_seed(0)
    one = nn.ModuleDict({"stack": Tiny()})
    first = CombinedOptimizer(one, OptimizerSettings(kind=kind, weight_decay=0.1))

    def step(model, optimizer):
        model["stack"](torch.arange(5)).square().sum().backward()
        optimizer.step(skip=torch.zeros(()))
        optimizer.zero_grad()

    for _ in range(3):
        step(one, first)
    two = nn.ModuleDict({"stack": Tiny()})
    two.load_state_dict(one.state_dict())
    second = CombinedOptimizer(two, OptimizerSettings(kind=kind, weight_decay=0.1))
    second.load({name: t.clone() for name, t in first.tensors().items()})
    for _ in range(2):
        step(one, first)
        step(two, second)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters()))


def test_moving_average_forgets_the_initial_weights_and_swaps_back():
    model = nn.Linear(3, 1)
    average = MovingAverage(model, 0.9)
    with torch.no_grad():
        model.weight.fill_(1.0)
    for _ in range(200):
        average.update()
    torch.testing.assert_close(average.tensors()["weight"], torch.ones(1, 3))
    with torch.no_grad():
        model.weight.fill_(5.0)
    average.swap()
    assert model.weight[0, 0].item() == pytest.approx(1.0)
    average.swap()
    assert model.weight[0, 0] == 5.0


def test_moving_average_has_the_statistics_of_batch_norms_also_of_a_checkpoint_without_them():
    model, decay = nn.BatchNorm1d(2), 0.9
    average, expected = MovingAverage(model, decay), torch.zeros(2)
    for step in range(1, 20):
        model(torch.randn(8, 2) + step)
        average.update()
        rising = min(decay, step / (step + 10))
        expected = rising * expected + (1 - rising) * model.running_mean
    torch.testing.assert_close(average.tensors()["running_mean"], expected)
    assert "num_batches_tracked" not in average.tensors()
    older = {name: tensor for name, tensor in average.tensors().items() if name in ("weight", "bias")}
    average.load(older, 19)
    assert torch.equal(average.tensors()["running_mean"], model.running_mean)


def test_average_weights_is_the_mean():
    several = [{"w": torch.full((2,), float(i))} for i in (1, 2, 6)]
    assert average_weights(several)["w"].tolist() == [3.0, 3.0]


def test_muon_equals_torch_optim_muon():
    """Matrix by matrix and batched, to the rounding of bf16."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((6, 4), (6, 4), (4, 8), (5, 5))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    mine, library = Muon(ours, lr=0.02, weight_decay=0.1), torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1)
    for _ in range(4):
        for p, q in zip(ours, theirs):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        mine.found_inf = torch.zeros(())
        mine.step()
        library.step()
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, atol=2e-3, rtol=0)
    torch.testing.assert_close(mine.state[ours[2]]["momentum_buffer"], library.state[theirs[2]]["momentum_buffer"])


def test_muon_updates_a_convolution_as_the_matrix_of_its_filters():
    """Also one in channels-last layout, with fewer columns than rows (a 1 × 1 convolution), and over several steps."""
    torch.manual_seed(0)
    shapes = [(6, 4, 3, 3), (6, 4, 3, 3), (8, 4, 1, 1)]
    convolutions = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    convolutions[1].data = convolutions[1].data.contiguous(memory_format=torch.channels_last)
    matrices = [nn.Parameter(p.detach().flatten(1).clone()) for p in convolutions]
    one, other = (Muon(weights, lr=0.02, weight_decay=0.1) for weights in (convolutions, matrices))
    one.found_inf = other.found_inf = torch.zeros(())
    for _ in range(3):
        for p, q in zip(convolutions, matrices):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.flatten(1)
        one.step()
        other.step()
    for p, q in zip(convolutions, matrices):
        assert torch.equal(p.flatten(1), q)
        assert torch.equal(one.state[p]["momentum_buffer"].flatten(1), other.state[q]["momentum_buffer"])


def test_muon_takes_the_convolutions_of_a_residual_stem_after_the_first_and_no_others():
    vit = VitModel(kind="vit", width=8, heads=2, layers=1, feed_forward=16, patch_size=2, stem="residual")
    caption = CaptionModel(encoder={"kind": "cnn", "widths": [8, 8], "strides": [2, 1]}, decoder={"width": 8})
    for model, expected in (
        (VitClassifier(vit, (4, 4), 3), 2 * 2 * 2 + 1),  # two in each of two blocks at two resolutions, and a projection
        (VitClassifier(vit.model_copy(update={"stem": "patches"}), (4, 4), 3), 0),
        (VitClassifier(vit.model_copy(update={"stem": "convolutions"}), (4, 4), 3), 0),
        (LstmCaptioner(caption, (4, 4), 10), 0),
    ):
        optimizer = CombinedOptimizer(model, OptimizerSettings(kind="muon"))
        taken = [optimizer.names[p] for one in optimizer.optimizers[1:] for group in one.param_groups for p in group["params"]]
        convolutions = [name for name in taken if dict(model.named_parameters())[name].dim() == 4]
        assert len(convolutions) == expected and all(".patches.stages." in name for name in convolutions)
