"""The kernels of the loss equal the written-out loss; skipped without a GPU."""

import pytest
import torch

from regard.batches.batch import IGNORE_INDEX, Batch
from regard.recipe import Regularization
from regard.training import cross_entropy
from regard.training.losses import CrossEntropy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("V", [2, 70, 5_001])
@pytest.mark.parametrize("smoothing, r_drop", [(0.0, 0.0), (0.1, 0.0), (0.0, 5.0), (0.1, 5.0)])
def test_kernels_equal_the_written_out_loss(monkeypatch, dtype, V, smoothing, r_drop):
    objective = CrossEntropy(Regularization(label_smoothing=smoothing, r_drop=r_drop))
    logits = (3 * torch.randn(8, 9, V, device="cuda")).to(dtype).requires_grad_()
    labels = torch.randint(V, (4, 9), device="cuda")
    labels[1, 2:] = IGNORE_INDEX
    batch = Batch({}, labels.repeat(2, 1), None)
    found = objective.loss(logits, batch)
    monkeypatch.setattr(cross_entropy, "triton", None)
    expected = objective.loss(logits, batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    gradients = [torch.autograd.grad(1.5 * loss, logits)[0].float() for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-5)
    assert (gradients[0][1, 2:] == 0).all()
