"""The kernel for the bookkeeping of beam search equals the functions that it replaces.

Skipped without a GPU, unless Triton interprets its kernels: TRITON_INTERPRET=1.
"""

from dataclasses import fields, replace

import pytest
import torch

from regard.decoding import beam_kernel
from regard.decoding.beam import BeamState, advance_beams, collect_hypotheses, is_done
from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.tokens.special_tokens import EOS

pytestmark = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def copied(beams):
    names = [part.name for part in fields(beams) if part.name != "end"]
    return replace(beams, **{name: getattr(beams, name).clone() for name in names})


@pytest.mark.parametrize("stop_early", [False, True])
@pytest.mark.parametrize("beam, vocabulary", [(1, 9), (3, 9), (4, 30), (3, 2)])
def test_kernel_equals_advance_beams_and_is_done(beam, vocabulary, stop_early):
    torch.manual_seed(beam)
    limits = torch.tensor([5, 3, 5], device=DEVICE)
    beams = BeamState.start(limits, beam, min(EOS, vocabulary - 1), alphas=[0.0, 0.6, 1.5], numbers=[1, 1, beam])
    number = min(2 * beam, vocabulary)
    with torch.inference_mode():
        other = copied(beams)
        for step in range(5):
            log_p, tokens = torch.randn(3 * beam, vocabulary, device=DEVICE).log_softmax(-1).topk(number)
            ends_now = (limits == step + 1).repeat_interleave(beam)
            log_p[ends_now, 1:], tokens[ends_now] = -torch.inf, beams.end
            assert beam_kernel.can_run(log_p, tokens)
            last, before = advance_beams(beams, log_p, tokens)
            expected = is_done(beams, stop_early)
            other_last, other_before, done = beam_kernel.advance_beams(other, log_p, tokens, stop_early=stop_early)
            assert torch.equal(done, expected)
            alive = beams.alive > -torch.inf
            torch.testing.assert_close(other.alive, beams.alive)
            assert torch.equal(other_last, last) and torch.equal(other_before[alive], before[alive])
            assert torch.equal(other.steps, beams.steps) and torch.equal(other.places, beams.places)
            torch.testing.assert_close(other.finished, beams.finished)
            torch.testing.assert_close(other.finished_log_p, beams.finished_log_p)
        found, expected = collect_hypotheses(other), collect_hypotheses(beams)
    assert any(hypotheses for _, hypotheses in expected)
    for (row, ours), (_, theirs) in zip(found, expected, strict=True):
        assert [(h.tokens, h.rows) for h in ours] == [(h.tokens, h.rows) for h in theirs], row


def test_kernel_prefers_the_first_of_equals_and_survives_nan():
    beams = BeamState.start(torch.tensor([4, 4], device=DEVICE), 2, EOS, alphas=[0.0, 0.0], numbers=[1, 1])
    log_p = torch.tensor([[-1.0] * 4, [-1.0] * 4, [torch.nan] * 4, [torch.nan] * 4], device=DEVICE)
    tokens = torch.tensor([[5, 6, 7, 8]] * 4, device=DEVICE)
    with torch.inference_mode():
        last, before, done = beam_kernel.advance_beams(beams, log_p, tokens, stop_early=True)
    assert last[0].tolist() == [5, 6] and before[0].tolist() == [0, 0] and not done[0]
    assert all(2 <= row < 4 for row in before[1].tolist()) and not done[1]
    assert not any(score > -torch.inf for score in beams.alive[1].tolist())
