"""A checkpoint is complete or absent; damage is found; old checkpoints are deleted last."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.files import clean_up_partial_writes
from regard.training import checkpoint
from regard.training.checkpoint import Checkpoint


@pytest.fixture
def saved(tmp_path):
    tensors = {"model": {"a": torch.randn(3, 4), "b": torch.arange(5)}, "optimizer": {"a/exp_avg": torch.randn(3, 4)}}
    return checkpoint.save_checkpoint(tmp_path, 7, Checkpoint(tensors, {"step": 7, "best": 0.5})), tensors


def test_a_loaded_checkpoint_is_bit_exact(saved):
    path, tensors = saved
    found = checkpoint.load_checkpoint(path)
    assert found.state == {"step": 7, "best": 0.5}
    for file, named in tensors.items():
        for name, tensor in named.items():
            assert torch.equal(found.tensors[file][name], tensor) and found.tensors[file][name].dtype == tensor.dtype
    assert not list(path.parent.glob(".writing*"))


def test_some_files_of_a_checkpoint_are_loaded_with_all_their_shards(tmp_path):
    rows = {"model": {"a": torch.ones(2)}, "model-2-of-2": {"a": torch.zeros(1)}, "optimizer": {"a/step": torch.ones(1)}}
    path = checkpoint.save_checkpoint(tmp_path, 7, Checkpoint(rows, {"step": 7}))
    found = checkpoint.load_checkpoint(path, ("model", "ema")).tensors
    assert found.keys() == {"model"} and found["model"]["a"].tolist() == [1, 1, 0]
    assert checkpoint.load_checkpoint(path).tensors.keys() == {"model", "optimizer"}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "hashes.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing"])
def test_a_damaged_checkpoint_is_found_and_the_one_before_is_used(saved, name, damage):
    path, tensors = saved
    newer = checkpoint.save_checkpoint(path.parent, 9, Checkpoint(tensors, {"step": 9}))
    victim = newer / name
    data = bytearray(victim.read_bytes())
    if damage == "missing":
        victim.unlink()
    else:
        data[len(data) // 2] ^= 1
        victim.write_bytes({"flip": bytes(data), "cut": bytes(data[:-1]), "empty": b""}[damage])
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load_checkpoint(newer)
    good, notes = checkpoint.latest_intact(path.parent)
    assert good == path and len(notes) == 1 and str(newer) in notes[0]


def test_a_full_disk_leaves_the_old_checkpoint_and_no_temporary_files(saved, monkeypatch):
    path, tensors = saved

    def full(target: Path, data: bytes) -> None:
        target.write_bytes(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_and_fsync", full)
    with pytest.raises(UserError, match=r"disk is full \([\d,]+ bytes needed, [\d,]+ free\)"):
        checkpoint.save_checkpoint(path.parent, 8, Checkpoint(tensors, {}))
    assert [p.name for p in path.parent.iterdir()] == [path.name] and checkpoint.find_damage(path) is None


def test_too_little_disk_space_is_reported_before_writing(saved, monkeypatch):
    path, tensors = saved
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(UserError, match="disk is full"):
        checkpoint.save_checkpoint(path.parent, 8, Checkpoint(tensors, {}))


def test_pruning_keeps_the_newest_and_the_protected_checkpoints(tmp_path):
    for step in range(1, 7):
        checkpoint.save_checkpoint(tmp_path, step, Checkpoint({"model": {"a": torch.ones(1)}}, {}))
    checkpoint.prune_checkpoints(tmp_path, 2, [3])
    assert [int(path.name[5:]) for path in checkpoint.list_checkpoints(tmp_path)] == [3, 5, 6]


def test_pruning_deletes_irregular_checkpoints_once_there_is_a_newer_one(tmp_path):
    """A checkpoint made by a signal does not replace a scheduled one."""
    for step in (2, 3, 4, 5, 6, 7):
        checkpoint.save_checkpoint(tmp_path, step, Checkpoint({"model": {"a": torch.ones(1)}}, {"step": step}))
    checkpoint.prune_checkpoints(tmp_path, 2, [2], lambda step: step % 2 == 0)
    assert [checkpoint.checkpoint_step(path) for path in checkpoint.list_checkpoints(tmp_path)] == [2, 4, 6, 7]


def test_partial_writes_of_a_killed_process_are_cleaned_up(saved):
    folder = saved[0].parent
    for name in (".writing-step-00000009", ".removing-step-00000003"):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(b"half")
    (folder / ".recipe.toml.writing").write_text("half")
    clean_up_partial_writes(folder)
    assert [path.name for path in folder.iterdir()] == ["step-00000007"]


def test_a_folder_whose_replacement_never_arrived_is_restored(saved):
    path, tensors = saved
    path.rename(path.with_name(f".replaced-{path.name}"))
    clean_up_partial_writes(path.parent)
    assert checkpoint.find_damage(path) is None
    checkpoint.save_checkpoint(path.parent, 7, Checkpoint(tensors, {"step": 7, "best": 0.9}))
    assert [one.name for one in path.parent.iterdir()] == [path.name] and checkpoint.load_checkpoint(path).state["best"] == 0.9


def test_a_checkpoint_is_named_by_step_or_path(tmp_path):
    for name in ("500", "step-00000500", "run/checkpoints/step-00000500"):
        assert checkpoint.checkpoint_path(tmp_path, name) == tmp_path / "step-00000500"
    with pytest.raises(UserError, match="give a step"):
        checkpoint.checkpoint_path(tmp_path, "last")
    with pytest.raises(UserError, match=r"no checkpoint .*step-00000500; available: none"):
        checkpoint.load_checkpoint(tmp_path / "step-00000500")


def test_load_weights_names_missing_surplus_and_misshapen_tensors(tmp_path):
    model = torch.nn.Linear(3, 2)
    good = checkpoint.named_weights(model)
    for weights, message in [
        ({"weight": good["weight"]}, "lacks the tensor bias"),
        ({**good, "bias": torch.ones(5)}, r"bias has shape \[5\], the model needs \[2\]"),
        ({**good, "more": torch.ones(1)}, "does not have: more"),
    ]:
        with torch.no_grad(), pytest.raises(UserError, match=message):
            checkpoint.load_weights(model, weights)
    (tmp_path / "x.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(UserError, match="damaged"):
        checkpoint.read_weights(tmp_path / "x.safetensors")


def test_batch_norm_statistics_are_part_of_the_weights():
    from regard.models.transformer import Transformer
    from regard.recipe import TransformerModel

    def build():
        return Transformer(TransformerModel(preset="tiny", width=16, heads=2, norm="batch"), 20, 20)

    model, other = build(), build()
    inputs = torch.randint(4, 20, (3, 7)), torch.tensor([7, 5, 3]), torch.randint(4, 20, (3, 6))
    model(*inputs)  # training mode updates the statistics
    with torch.no_grad():
        checkpoint.load_weights(other, checkpoint.named_weights(model))
    assert torch.equal(model.eval()(*inputs), other.eval()(*inputs))


def test_the_train_state_is_json(saved):
    assert json.loads((saved[0] / "state.json").read_text())["step"] == 7
