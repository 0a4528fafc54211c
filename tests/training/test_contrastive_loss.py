"""The contrastive loss: equal to the formula, in any order, on one process or several."""

import multiprocessing
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from regard.batches.batch import Batch
from regard.training.losses import ContrastiveLoss, all_gather_rows


class TwoTowers(nn.Module):
    """Two linear maps and a scale, as in CLIP."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.image, self.text = (nn.Linear(5, 4, bias=False).double() for _ in range(2))
        self.log_scale = nn.Parameter(torch.tensor(2.0).double())

    def forward(self, pixels, source):
        return F.normalize(self.image(pixels), dim=-1), F.normalize(self.text(source), dim=-1), self.log_scale.exp()


def make_batch(rows=range(7)):
    generator = torch.Generator().manual_seed(5)
    pixels, source = (torch.randn(7, 5, generator=generator, dtype=torch.float64)[list(rows)] for _ in range(2))
    return Batch({"pixels": pixels, "source": source}, torch.arange(len(pixels)), torch.arange(len(pixels)).numpy())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_contrastive_loss_is_the_mean_of_both_cross_entropies(smoothing):
    model, batch = TwoTowers(), make_batch()
    images, texts, scale = model(**batch.inputs)
    logits, labels = scale * images @ texts.T, torch.arange(7)
    expected = sum(F.cross_entropy(side, labels, reduction="sum", label_smoothing=smoothing) for side in (logits, logits.T)) / 2
    torch.testing.assert_close(ContrastiveLoss(smoothing)(model, batch), expected)
    assert batch.label_count() == 7


def test_contrastive_loss_is_independent_of_the_order():
    model = TwoTowers()
    torch.testing.assert_close(
        ContrastiveLoss()(model, make_batch([4, 0, 6, 2, 1, 5, 3])), ContrastiveLoss()(model, make_batch())
    )


def test_all_gather_rows_of_one_process_is_the_identity():
    x = torch.randn(3, 2)
    every, first = all_gather_rows(x)
    assert every is x and first == 0


def rank_loss(rank, world_size, folder, rows):
    """Compute the loss and gradients of one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    model = TwoTowers()
    loss = ContrastiveLoss()(model, make_batch(range(rows)[rank::world_size]))
    loss.backward()
    torch.save([loss.detach(), *(p.grad for p in model.parameters())], Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks, rows", [(2, 6), (2, 7), (3, 7)])
def test_contrastive_loss_of_several_ranks_equals_one_process(ranks, rows):
    """The ranks' losses and gradients sum to those of one process; the ranks' numbers of rows may differ."""
    model = TwoTowers()
    whole = ContrastiveLoss()(model, make_batch(range(rows)))
    whole.backward()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=rank_loss, args=(rank, ranks, folder, rows)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        shares = [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(ranks)]
    for found, expected in zip(zip(*shares), [whole.detach(), *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(sum(found), expected, atol=1e-12, rtol=0)
        assert not torch.allclose(found[0], expected)
