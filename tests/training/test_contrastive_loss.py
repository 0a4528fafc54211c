"""The contrastive loss: equal to the formula, in any order, on one process or several."""

import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from regard.batches.batch import Batch
from regard.training.losses import ContrastiveLoss, all_gather_rows, nll


class TwoTowers(nn.Module):
    """Two linear maps and a scale, as in CLIP."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.image, self.text = (nn.Linear(5, 4, bias=False).double() for _ in range(2))
        self.log_scale = nn.Parameter(torch.tensor(2.0).double())

    def forward(self, pixels, source):
        return F.normalize(self.image(pixels), dim=-1), F.normalize(self.text(source), dim=-1), self.log_scale.exp()


def make_batch(rows=range(7), negatives=0):
    """Pairs, and behind them so many hard negatives of each."""
    generator = torch.Generator().manual_seed(5)
    pixels, source = (torch.randn(7, 5, generator=generator, dtype=torch.float64)[list(rows)] for _ in range(2))
    false = torch.randn(7, negatives, 5, generator=generator, dtype=torch.float64)[list(rows)].flatten(0, 1)
    texts = torch.cat([source, false])
    return Batch({"pixels": pixels, "source": texts}, torch.arange(len(pixels)), torch.arange(len(pixels)).numpy())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_contrastive_loss_is_the_mean_of_both_cross_entropies(smoothing):
    model, batch = TwoTowers(), make_batch()
    images, texts, scale = model(**batch.inputs)
    logits, labels = scale * images @ texts.T, torch.arange(7)
    expected = sum(F.cross_entropy(side, labels, reduction="sum", label_smoothing=smoothing) for side in (logits, logits.T)) / 2
    torch.testing.assert_close(ContrastiveLoss(smoothing)(model, batch), expected)
    assert batch.label_count() == 7


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_contrastive_loss_without_hard_negatives_is_that_of_pairs_to_the_bit(smoothing):
    model, batch = TwoTowers(), make_batch()
    images, texts, scale = model(**batch.inputs)
    sides = [
        nll((scale * one @ other.T).log_softmax(-1), torch.arange(7), smoothing)
        for one, other in ((images, texts), (texts, images))
    ]
    assert torch.equal(ContrastiveLoss(smoothing)(model, batch), (sides[0] + sides[1]).sum() / 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_hard_negatives_are_further_texts_of_the_image_to_text_direction(smoothing):
    model, batch = TwoTowers(), make_batch(negatives=2)
    images, texts, scale = model(**batch.inputs)
    logits, labels = scale * images @ texts.T, torch.arange(7)  # (7, 21)
    of_images = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    of_texts = F.cross_entropy(logits[:, :7].T, labels, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ContrastiveLoss(smoothing)(model, batch), (of_images + of_texts) / 2)
    assert batch.label_count() == 7


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_own_hard_negatives_are_contrasted_with_their_own_image_only(smoothing):
    model, batch = TwoTowers(), make_batch(negatives=2)
    images, texts, scale = model(**batch.inputs)
    expected = ContrastiveLoss(smoothing)(model, make_batch())
    for i in range(7):
        own = torch.stack([texts[i], texts[7 + 2 * i], texts[8 + 2 * i]])
        choice = F.cross_entropy(scale * own @ images[i], torch.tensor(0), label_smoothing=smoothing)
        expected = expected + 0.5 * choice
    loss = ContrastiveLoss(smoothing, own_weight=0.5)
    torch.testing.assert_close(loss(model, batch), expected)
    assert torch.equal(loss(model, make_batch()), ContrastiveLoss(smoothing)(model, make_batch())), "validation has none"


def test_own_hard_negatives_of_a_dummy_row_have_no_loss():
    batch = replace(make_batch([0], negatives=2), in_loss=False)
    assert ContrastiveLoss(own_weight=1.0)(TwoTowers(), batch) == 0


def test_a_gradient_step_ranks_the_true_text_above_a_hard_negative():
    """A hard negative that begins nearer to the image than the true text falls below it."""
    model = TwoTowers()
    image, text = make_batch([0]).inputs.values()
    with torch.no_grad():  # a text that the text tower maps nearer to the image
        away = F.normalize(model.image(image), dim=-1) @ model.text.weight
    batch = Batch({"pixels": image, "source": torch.cat([text, text + 0.3 * away])}, torch.arange(1), None)

    @torch.no_grad()
    def margin():
        images, texts, _ = model(**batch.inputs)
        return float(images[0] @ (texts[0] - texts[1]))

    margins = [margin()]
    for _ in range(20):
        model.zero_grad()
        ContrastiveLoss()(model, batch).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        margins.append(margin())
    assert margins[0] < 0 < margins[-1] and margins == sorted(margins)
    model.zero_grad()
    ContrastiveLoss()(model, make_batch([0])).backward()
    assert not model.text.weight.grad.any(), "without a hard negative, a single pair teaches nothing"


def test_contrastive_loss_is_independent_of_the_order():
    model = TwoTowers()
    torch.testing.assert_close(
        ContrastiveLoss()(model, make_batch([4, 0, 6, 2, 1, 5, 3])), ContrastiveLoss()(model, make_batch())
    )


def test_all_gather_rows_of_one_process_is_the_identity():
    x = torch.randn(3, 2)
    every, first = all_gather_rows(x)
    assert every is x and first == 0


def rank_loss(rank, world_size, folder, rows, negatives, own_weight):
    """Compute the loss and gradients of one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    model = TwoTowers()
    loss = ContrastiveLoss(own_weight=own_weight)(model, make_batch(range(rows)[rank::world_size], negatives))
    loss.backward()
    torch.save([loss.detach(), *(p.grad for p in model.parameters())], Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "ranks, rows, negatives, own_weight", [(2, 6, 0, 0.0), (2, 7, 0, 0.0), (3, 7, 0, 0.0), (2, 7, 2, 0.0), (2, 7, 2, 0.5)]
)
def test_contrastive_loss_of_several_ranks_equals_one_process(ranks, rows, negatives, own_weight):
    """The ranks' losses and gradients sum to those of one process; the ranks' numbers of rows may differ."""
    model = TwoTowers()
    whole = ContrastiveLoss(own_weight=own_weight)(model, make_batch(range(rows), negatives))
    whole.backward()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=rank_loss, args=(rank, ranks, folder, rows, negatives, own_weight)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        shares = [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(ranks)]
    for found, expected in zip(zip(*shares), [whole.detach(), *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(sum(found), expected, atol=1e-12, rtol=0)
        assert not torch.allclose(found[0], expected)
