"""The pixel store: images are decoded once, by any number of workers, to the same bits in the same order."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from regard.batches import image_store as module
from regard.batches.image_rows import ImageClassificationRows
from regard.batches.image_store import decode_images, move_to_device_if_fits, open_pixel_store, take_pixels
from regard.corpus.decode_image import ImageTransform
from regard.corpus.examples import ImageExamples, ImageFile
from regard.errors import UserError
from regard.files import cache_root

TRANSFORM = ImageTransform((8, 12), (8, 12))


@pytest.fixture(scope="module")
def image_examples(tmp_path_factory):
    """300 images, each of its own colour, enough for several decoding tasks."""
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(300):
        Image.fromarray(np.full((10, 15, 3), [i % 256, i // 256, 7], np.uint8)).save(folder / f"{i:03}.png")
    return ImageExamples([ImageFile(path) for path in sorted(folder.iterdir())], name="some")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_decoding_is_independent_of_the_number_of_workers(image_examples, workers):
    found = open_pixel_store(image_examples, TRANSFORM, workers=workers)
    assert found.shape == (300, 8, 12, 3) and found.dtype == np.uint8
    assert np.array_equal(found[:, 4, 4, :2].astype(int) @ [1, 256], np.arange(300))
    assert np.array_equal(found, np.stack([decode_images([image], TRANSFORM)[0] for image in image_examples.images]))
    assert np.array_equal(found, decode_images(image_examples.images, TRANSFORM, workers=workers))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_broken_image_is_named_and_the_cache_stays_empty(image_examples, tmp_path, workers):
    for number in (70, 130, 290):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    broken = ImageExamples(
        [ImageFile(tmp_path / f"{i}.png") if i in (70, 130, 290) else one for i, one in enumerate(image_examples.images)]
    )
    with pytest.raises(UserError, match=r"/70.png is not a PNG"):
        open_pixel_store(broken, TRANSFORM, workers=workers)
    assert not list(cache_root().iterdir())


def test_a_pixel_store_is_found_by_content_and_settings(image_examples, monkeypatch, tmp_path):
    first = open_pixel_store(image_examples, TRANSFORM)
    assert isinstance(first, np.memmap)
    copies = []
    for i, one in enumerate(image_examples.images[:70]):
        (tmp_path / f"{i}.webp").write_bytes(one.read())  # the same content under another name
        copies.append(ImageFile(tmp_path / f"{i}.webp"))
    monkeypatch.setattr(module, "load_pixels", lambda *_: pytest.fail("decoded again"))
    renamed = ImageExamples([*copies, *image_examples.images[70:]])
    assert np.array_equal(open_pixel_store(renamed, TRANSFORM, workers=1), first)
    for other, frame in (
        (image_examples.select(range(299)), TRANSFORM),
        (image_examples, ImageTransform((8, 8), (8, 8))),
        (image_examples, ImageTransform((8, 12), (8, 12), "stretch")),
        (image_examples, ImageTransform((8, 12), (8, 12), resample="box")),
    ):
        with pytest.raises(pytest.fail.Exception):
            open_pixel_store(other, frame, workers=1)
    (folder,) = cache_root().iterdir()
    assert json.loads((folder / "layout.json").read_text())["rows"] == 300


def test_images_of_a_world_are_arrays(tmp_path):
    drawn = ImageExamples([np.full((8, 12, 3), shade, np.uint8) for shade in (3, 9)], name="drawn", label=["a", "b"])
    assert np.array_equal(open_pixel_store(drawn, TRANSFORM)[:, 0, 0, 0], [3, 9])
    assert drawn.select([1]).label == ["b"] and drawn.where(1) == "drawn example 2"
    assert open_pixel_store(drawn, ImageTransform((4, 4), (4, 4))).shape == (2, 4, 4, 3)


def test_too_little_disk_space_is_reported_before_decoding(image_examples, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"take 0.0 GiB in .*XDG_CACHE_HOME"):
        open_pixel_store(image_examples, TRANSFORM)


def test_take_pixels_from_disk_equals_from_a_device(image_examples):
    stored = open_pixel_store(image_examples, TRANSFORM)
    rows = np.array([5, 299, 0])
    there = torch.from_numpy(np.array(stored))  # as it would be on a GPU
    assert torch.equal(take_pixels(stored, rows), take_pixels(there, rows)) and take_pixels(stored, rows).shape == (3, 3, 8, 12)
    assert take_pixels(stored, rows)[1, :, 0, 0].tolist() == [43, 1, 7]
    assert move_to_device_if_fits(stored, torch.device("cpu")) is stored
    batch = ImageClassificationRows(stored, np.arange(300) % 7, 7).batch(rows, 1, 0)
    assert batch.inputs["pixels"].dtype == torch.uint8 and batch.labels.tolist() == [5, 5, 0]


def test_a_jpeg_with_the_suffix_png_is_decoded(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (255, 0, 0)).save(file, "JPEG")
    (tmp_path / "wrong-name.png").write_bytes(file.getvalue())  # the content decides, not the suffix
    assert (decode_images([ImageFile(tmp_path / "wrong-name.png")], TRANSFORM)[0, 0, 0] > [250, -1, -1]).all()
