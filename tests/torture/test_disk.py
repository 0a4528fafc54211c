"""Full disks and damaged files: the previous checkpoint stays intact, no temporary files stay, one line says what is wrong."""

import ctypes
import os
import resource
import shutil
from contextlib import contextmanager

import pytest
import torch

from regard import files
from regard.errors import UserError
from regard.training import checkpoint
from regard.training.checkpoint import Checkpoint

OFFSETS = 24


def tensors(size):
    return {"model": {"a": torch.randn(size, 64)}, "optimizer": {"a/exp_avg": torch.randn(size, 64)}}


def refuse(folder, size):
    """Save a checkpoint that does not fit on the disk."""
    try:
        checkpoint.save_checkpoint(folder, 2, Checkpoint(tensors(size), {"step": 2}))
    except UserError as error:
        assert "the disk is full (" in str(error) and "bytes needed" in str(error) and " free)" in str(error), error
        assert "\n" not in str(error)
    else:
        raise AssertionError("it fitted")
    assert [path.name for path in folder.iterdir()] == ["step-00000001"] and checkpoint.find_damage(
        folder / "step-00000001"
    ) is None


@pytest.mark.parametrize("offsets", [4, pytest.param(OFFSETS, marks=pytest.mark.torture)])
def test_a_write_cut_short_anywhere_leaves_the_previous_checkpoint(tmp_path, in_child, count, offsets):
    """RLIMIT_FSIZE: the kernel writes a part of the data, then returns EFBIG."""
    whole = 64 * 256 * 4
    for number in range(offsets):
        folder = tmp_path / str(number)
        checkpoint.save_checkpoint(folder, 1, Checkpoint(tensors(4), {"step": 1}))
        limit = number * whole // offsets

        def act(folder=folder, limit=limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            refuse(folder, 256)

        assert in_child(act) == "", f"at {limit} bytes"
        count("writes cut short by the kernel (RLIMIT_FSIZE)")


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
        pytest.skip(f"mounting a tmpfs is not allowed here: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        library.umount2(str(folder).encode(), 2)


@pytest.mark.torture
@pytest.mark.parametrize("check_space", [True, False], ids=["checked before writing", "met while writing"])
def test_a_full_tmpfs_leaves_the_previous_checkpoint(tmp_path, count, monkeypatch, check_space):
    """On a tmpfs; without the check of free space, the disk fills up in the middle."""
    if not check_space:
        monkeypatch.setattr(files, "require_space", lambda folder, needed: None)
    for number in range(OFFSETS):
        with small_disk(tmp_path / str(number), 2**18) as disk:
            folder = disk / "checkpoints"
            checkpoint.save_checkpoint(folder, 1, Checkpoint(tensors(4), {"step": 1}))
            free = number * (2 * 64 * 256 * 4 // OFFSETS)
            (disk / "filler").write_bytes(bytes(max(0, shutil.disk_usage(disk).free - free)))
            refuse(folder, 256)
            count(f"full disks (tmpfs), {'checked before writing' if check_space else 'met while writing'}")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two checkpoints; the newer one is to be damaged."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for step in (1, 2):
        checkpoint.save_checkpoint(
            folder, step, Checkpoint({**tensors(8), "ema": {"a": torch.randn(8, 64)}}, {"step": step, "best": 0.5})
        )
    return folder


@pytest.mark.parametrize("flips, cuts", [(100, 20), pytest.param(1000, 200, marks=pytest.mark.torture)])
def test_every_flipped_bit_and_truncation_is_found(good, chance, count, flips, cuts):
    newest, files = good / "step-00000002", sorted((good / "step-00000002").iterdir())
    for number in range(flips + cuts):
        victim = files[number % len(files)]
        data = victim.read_bytes()
        damaged = bytearray(data)
        if number < flips:
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del damaged[chance.randrange(len(data)) :]
        victim.write_bytes(damaged)
        found, notes = checkpoint.latest_intact(good)
        assert found == good / "step-00000001" and len(notes) == 1 and "damaged" in notes[0], (victim, number)
        with pytest.raises(UserError, match="damaged"):
            checkpoint.load_checkpoint(newest)
        victim.write_bytes(data)
        count("bits flipped, found" if number < flips else "truncations, found")
    assert checkpoint.latest_intact(good) == (newest, [])


def test_missing_empty_and_swapped_files_are_found(good, tmp_path, count):
    names = [path.name for path in (good / "step-00000002").iterdir()]
    other = {
        "model.safetensors": "ema.safetensors",
        "ema.safetensors": "model.safetensors",
        "state.json": "hashes.json",
        "optimizer.safetensors": "model.safetensors",
        "hashes.json": "state.json",
    }
    for name in names:
        for harm in ("missing", "empty", "swapped inside", "swapped with the one before", "a folder"):
            damaged = tmp_path / f"{name}-{harm}"
            shutil.copytree(good, damaged)
            victim = damaged / "step-00000002" / name
            victim.unlink()
            if harm == "empty":
                victim.touch()
            elif harm == "a folder":
                victim.mkdir()
            elif harm != "missing":
                source = victim.with_name(other[name]) if harm == "swapped inside" else damaged / "step-00000001" / name
                shutil.copyfile(source, victim)
            found, notes = checkpoint.latest_intact(damaged)
            assert found == damaged / "step-00000001" and len(notes) == 1, (name, harm)
            count("files missing, empty or swapped, found")


def test_a_renamed_checkpoint_is_found(good, tmp_path):
    shutil.copytree(good / "step-00000001", tmp_path / "step-00000007")
    assert checkpoint.find_damage(tmp_path / "step-00000007") == "it is a checkpoint of step 1"
