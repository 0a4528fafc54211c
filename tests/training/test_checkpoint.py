"""A checkpoint is whole or not there; damage is found; the old one goes last."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch

from regard import files
from regard.errors import UserError
from regard.files import atomic_write, clean_up_partial_writes
from regard.training import checkpoint
from regard.training.checkpoint import Checkpoint


@pytest.fixture
def saved(tmp_path):
    tensors = {"model": {"a": torch.randn(3, 4), "b": torch.arange(5)}, "optimizer": {"a/exp_avg": torch.randn(3, 4)}}
    return checkpoint.save_checkpoint(tmp_path, 7, Checkpoint(tensors, {"step": 7, "best": 0.5})), tensors


def test_what_was_saved_is_loaded_bit_for_bit(saved):
    path, tensors = saved
    found = checkpoint.load_checkpoint(path)
    assert found.state == {"step": 7, "best": 0.5}
    for file, named in tensors.items():
        for name, tensor in named.items():
            assert torch.equal(found.tensors[file][name], tensor) and found.tensors[file][name].dtype == tensor.dtype
    assert not list(path.parent.glob(".writing*"))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "hashes.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "missing"])
def test_any_damage_is_found_and_the_one_before_is_taken(saved, name, harm):
    path, tensors = saved
    newer = checkpoint.save_checkpoint(path.parent, 9, Checkpoint(tensors, {"step": 9}))
    victim = newer / name
    data = bytearray(victim.read_bytes())
    if harm == "missing":
        victim.unlink()
    else:
        data[len(data) // 2] ^= 1
        victim.write_bytes({"flip": bytes(data), "cut": bytes(data[:-1]), "empty": b""}[harm])
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load_checkpoint(newer)
    good, notes = checkpoint.latest_intact(path.parent)
    assert good == path and len(notes) == 1 and str(newer) in notes[0]


def test_a_full_disk_leaves_the_old_checkpoint_and_no_litter(saved, monkeypatch):
    path, tensors = saved

    def full(target: Path, data: bytes) -> None:
        target.write_bytes(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_and_fsync", full)
    with pytest.raises(UserError, match=r"disk is full \([\d,]+ bytes needed, [\d,]+ free\)"):
        checkpoint.save_checkpoint(path.parent, 8, Checkpoint(tensors, {}))
    assert [p.name for p in path.parent.iterdir()] == [path.name] and checkpoint.find_damage(path) is None


def test_too_little_space_is_seen_before_writing(saved, monkeypatch):
    path, tensors = saved
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(UserError, match="disk is full"):
        checkpoint.save_checkpoint(path.parent, 8, Checkpoint(tensors, {}))


def test_retention_keeps_the_newest_and_the_protected(tmp_path):
    for step in range(1, 7):
        checkpoint.save_checkpoint(tmp_path, step, Checkpoint({"model": {"a": torch.ones(1)}}, {}))
    checkpoint.prune_checkpoints(tmp_path, 2, [3])
    assert [int(path.name[5:]) for path in checkpoint.list_checkpoints(tmp_path)] == [3, 5, 6]


def test_those_that_do_not_count_go_once_there_is_a_newer_one(tmp_path):
    """What a signal made is no substitute for what the schedule makes."""
    for step in (2, 3, 4, 5, 6, 7):
        checkpoint.save_checkpoint(tmp_path, step, Checkpoint({"model": {"a": torch.ones(1)}}, {"step": step}))
    checkpoint.prune_checkpoints(tmp_path, 2, [2], lambda step: step % 2 == 0)
    assert [checkpoint.checkpoint_step(path) for path in checkpoint.list_checkpoints(tmp_path)] == [2, 4, 6, 7]


def test_what_a_killed_process_left_is_swept(saved):
    folder = saved[0].parent
    for name in (".writing-step-00000009", ".removing-step-00000003"):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(b"half")
    (folder / ".recipe.toml.writing").write_text("half")
    clean_up_partial_writes(folder)
    assert [path.name for path in folder.iterdir()] == ["step-00000007"]


def test_one_that_was_about_to_be_replaced_is_put_back(saved):
    path, tensors = saved
    path.rename(path.with_name(f".replaced-{path.name}"))
    clean_up_partial_writes(path.parent)
    assert checkpoint.find_damage(path) is None
    checkpoint.save_checkpoint(path.parent, 7, Checkpoint(tensors, {"step": 7, "best": 0.9}))
    assert [one.name for one in path.parent.iterdir()] == [path.name] and checkpoint.load_checkpoint(path).state["best"] == 0.9


def test_a_checkpoint_is_named_as_one_likes(tmp_path):
    for name in ("500", "step-00000500", "run/checkpoints/step-00000500"):
        assert checkpoint.checkpoint_path(tmp_path, name) == tmp_path / "step-00000500"
    with pytest.raises(UserError, match="give a step"):
        checkpoint.checkpoint_path(tmp_path, "last")
    with pytest.raises(UserError, match=r"no checkpoint .*step-00000500; available: none"):
        checkpoint.load_checkpoint(tmp_path / "step-00000500")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "recipe.toml"
    atomic_write(path, "old")
    atomic_write(path, "new")
    assert path.read_text() == "new"

    def full(target, data):
        target.write_bytes(data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_and_fsync", full)
    with pytest.raises(UserError, match="disk is full"):
        atomic_write(path, "newer")
    assert path.read_text() == "new" and [one.name for one in tmp_path.iterdir()] == ["recipe.toml"]


def test_weights_that_do_not_fit_are_named(tmp_path):
    model = torch.nn.Linear(3, 2)
    good = checkpoint.named_weights(model)
    for weights, said in [
        ({"weight": good["weight"]}, "lacks the tensor bias"),
        ({**good, "bias": torch.ones(5)}, r"bias has shape \[5\], the model needs \[2\]"),
        ({**good, "more": torch.ones(1)}, "does not have: more"),
    ]:
        with torch.no_grad(), pytest.raises(UserError, match=said):
            checkpoint.load_weights(model, weights)
    (tmp_path / "x.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(UserError, match="damaged"):
        checkpoint.read_weights(tmp_path / "x.safetensors")


def test_the_statistics_of_a_batch_norm_belong_to_the_weights():
    from regard.models.transformer import Transformer
    from regard.recipe import TransformerModel

    def build():
        return Transformer(TransformerModel(preset="tiny", width=16, heads=2, norm="batch"), 20, 20)

    model, other = build(), build()
    inputs = torch.randint(4, 20, (3, 7)), torch.tensor([7, 5, 3]), torch.randint(4, 20, (3, 6))
    model(*inputs)  # training mode: the statistics move
    with torch.no_grad():
        checkpoint.load_weights(other, checkpoint.named_weights(model))
    assert torch.equal(model.eval()(*inputs), other.eval()(*inputs))


def test_state_is_json(saved):
    assert json.loads((saved[0] / "state.json").read_text())["step"] == 7
