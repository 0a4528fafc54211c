"""Steps run again are bit-exact, and a difference is found."""

import pytest
import torch

from regard.errors import UserError
from regard.training import checkpoint
from regard.training.verify import verify_steps


@pytest.fixture
def finished(store, trainer, tmp_path):
    """A run of 8 steps with checkpoints at 2, 4, 6, 8."""
    trainer(store, tmp_path, ema_decay=0.9).train()
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("steps, begin", [(2, 6), (3, 4), (8, 0), (20, 0)])
def test_verified_steps_are_bit_exact(store, trainer, tmp_path, finished, steps, begin, capsys):
    fresh = trainer(store, tmp_path, ema_decay=0.9)
    assert verify_steps(fresh, finished / "step-00000008", steps) == []
    assert f"running steps {begin + 1} to 8 again" in capsys.readouterr().err
    assert fresh.state.step == 8


def test_verify_names_the_files_that_differ(store, trainer, tmp_path, finished):
    fresh = trainer(store, tmp_path, ema_decay=0.9, optimizer={"learning_rate": 2e-3})
    assert verify_steps(fresh, finished / "step-00000008", 4) == [
        f"step-00000006/{name}.safetensors" for name in ("model", "optimizer", "ema")
    ]


def test_verify_finds_one_flipped_bit_of_the_optimizer(store, trainer, tmp_path, finished):
    found = checkpoint.load_checkpoint(finished / "step-00000008")
    name = next(name for name in found.tensors["optimizer"] if name.endswith("exp_avg"))
    bits = found.tensors["optimizer"][name].view(torch.int32)
    bits.view(-1)[0] ^= 1
    checkpoint.save_checkpoint(finished, 8, found)
    found = verify_steps(trainer(store, tmp_path, ema_decay=0.9), finished / "step-00000008", 2)
    assert found == ["step-00000008/optimizer.safetensors"]


def test_verify_without_an_old_enough_checkpoint_names_the_possible_number(store, trainer, tmp_path, finished):
    for step in (2, 4):
        checkpoint.remove_folder(finished / f"step-{step:08d}")
    with pytest.raises(UserError, match=r"no good checkpoint 3 steps before step 8; use --verify 2"):
        verify_steps(trainer(store, tmp_path, ema_decay=0.9), finished / "step-00000008", 3)
