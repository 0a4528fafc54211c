"""Pictures of every sort become RGB of one size, or are refused by name in one line."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.corpus.decode_image import ImageTransform, decode_image, load_pixels
from regard.corpus.image_bytes import ImageFile
from regard.errors import UserError

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 9, 3)).astype(np.uint8)
SMOOTH = np.asarray(Image.fromarray(COLOURS).resize((90, 60), Image.Resampling.BICUBIC))


def written(image, kind="PNG", **options):
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def seen(data):
    return np.asarray(decode_image(data, "a picture")).astype(int)


@pytest.mark.parametrize("kind, options", [("PNG", {}), ("WEBP", {"lossless": True})])
def test_without_loss_every_pixel_is_as_it_was(kind, options):
    assert np.array_equal(seen(written(Image.fromarray(COLOURS), kind, **options)), COLOURS)


def test_a_jpeg_is_nearly_as_it_was():
    assert np.abs(seen(written(Image.fromarray(SMOOTH), "JPEG", quality=95)) - SMOOTH).mean() < 3


@pytest.mark.parametrize("mode", ["L", "1", "P"])
def test_grey_black_and_white_and_palettes_become_rgb(mode):
    image = Image.fromarray(SMOOTH).convert(mode)
    assert np.array_equal(seen(written(image)), np.asarray(image.convert("RGB")))


def test_what_is_transparent_lies_on_white():
    alpha = np.zeros((6, 9), np.uint8)
    alpha[:, 3:6], alpha[:, 6:] = 128, 255
    image = Image.fromarray(np.dstack([COLOURS, alpha]))
    found = seen(written(image))
    assert (found[:, :3] == 255).all() and np.array_equal(found[:, 6:], COLOURS[:, 6:])
    assert np.abs(found[:, 3:6] - (255 + COLOURS[:, 3:6].astype(int)) / 2).max() <= 2
    grey = Image.fromarray(np.dstack([COLOURS[..., 0], alpha]))
    assert grey.mode == "LA" and (seen(written(grey))[:, :3] == 255).all()
    palette = Image.fromarray(COLOURS[:1]).quantize(4)
    first = int(np.asarray(palette)[0, 0])
    assert (seen(written(palette, transparency=first))[0, 0] == 255).all()


def test_sixteen_bits_are_scaled_and_not_cut_off():
    deep = np.linspace(0, 65535, 54).astype(np.uint16).reshape(6, 9)
    found = seen(written(Image.fromarray(deep)))
    assert np.array_equal(found[..., 0], deep >> 8) and np.array_equal(found[..., 0], found[..., 2])


def test_cmyk_becomes_rgb():
    image = Image.fromarray(SMOOTH).convert("CMYK")
    assert np.abs(seen(written(image, "JPEG", quality=95)) - SMOOTH).mean() < 6


@pytest.mark.parametrize(
    "orientation, turned",
    [(3, lambda a: a[::-1, ::-1]), (6, lambda a: np.rot90(a, -1)), (8, lambda a: np.rot90(a)), (2, lambda a: a[:, ::-1])],
)
def test_exifs_turn_is_applied(orientation, turned):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(seen(written(Image.fromarray(COLOURS), exif=exif)), turned(COLOURS))


def test_of_a_moving_picture_the_first_counts():
    frames = [Image.fromarray(np.full((4, 4, 3), shade, np.uint8)) for shade in (10, 200)]
    for kind, options in (("WEBP", {"lossless": True}), ("PNG", {})):
        data = written(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert (seen(data) == 10).all()


def refused(data, match):
    with pytest.raises(UserError, match=match) as caught:
        decode_image(data, "a/b.png")
    assert str(caught.value).startswith("a/b.png ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_truncated_picture_is_refused(kind, share):
    data = written(Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 80, 3)).astype(np.uint8)), kind)
    refused(data[: int(share * len(data))], "is damaged|is not a PNG")


@pytest.mark.parametrize("data", [b"", b"a text", *(written(Image.fromarray(COLOURS), kind) for kind in ("GIF", "BMP"))])
def test_what_is_no_picture_of_ours_is_refused(data):
    refused(data, "is not a PNG, JPEG or WebP picture; convert it")


@pytest.mark.parametrize("limit", [40, 20])  # Pillow warns of the one and refuses the other
def test_a_decompression_bomb_is_refused(monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    refused(written(Image.fromarray(COLOURS)), f"more than {limit} pixels")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 54)
    assert seen(written(Image.fromarray(COLOURS))).shape == (6, 9, 3)


def test_a_bomb_is_refused_in_every_thread(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    small, large = written(Image.fromarray(COLOURS[:4])), written(Image.fromarray(COLOURS))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they take turns in the middle of it
    with ThreadPoolExecutor(8) as pool:
        told = [pool.submit(refused, large, "more than 40 pixels") if i % 2 else pool.submit(seen, small) for i in range(2000)]
    sys.setswitchinterval(before)
    assert not [error for one in told if (error := one.exception())]


WHOLE = {kind: written(Image.fromarray(SMOOTH), kind) for kind in ("PNG", "JPEG", "WEBP")}


@given(st.sampled_from(sorted(WHOLE)), st.integers(0, 10**6), st.integers(1, 12))
def test_whatever_the_bytes_it_is_a_picture_or_a_mistake(kind, seed, number):
    data, chance = bytearray(WHOLE[kind]), random.Random(seed)
    for _ in range(number):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        assert seen(bytes(data)).shape[2] == 3
    except UserError as mistake:
        assert "\n" not in str(mistake)


@pytest.mark.parametrize("fit", ["crop", "stretch"])
@pytest.mark.parametrize("size, resized", [((32, 32), (32, 32)), ((20, 30), (24, 36)), ((64, 16), (64, 16))])
def test_resized_and_cut_in_one_go_is_resized_then_cut(fit, size, resized):
    image = Image.fromarray(SMOOTH)  # 60 high, 90 wide
    tall, wide = resized
    if fit == "crop":
        scale = max(tall / 60, wide / 90)
        tall, wide = max(tall, int(60 * scale)), max(wide, int(90 * scale))
    top, left = (tall - size[0]) // 2, (wide - size[1]) // 2
    expected = np.asarray(image.resize((wide, tall), Image.Resampling.BILINEAR).crop((left, top, left + size[1], top + size[0])))
    found = ImageTransform(size, resized, fit).apply(image)
    assert found.shape == (*size, 3) and found.dtype == np.uint8
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_a_picture_of_the_right_size_is_not_touched_and_a_thin_one_takes_no_room():
    assert np.array_equal(ImageTransform((6, 9), (6, 9)).apply(Image.fromarray(COLOURS)), COLOURS)
    thin = Image.new("RGB", (1, 60_000), "red")  # resized in full it would have 3 · 10^9 pixels
    assert (ImageTransform((224, 224), (224, 224)).apply(thin) == [255, 0, 0]).all()


def test_pieces_are_read_where_they_lie(tmp_path):
    one, other = written(Image.fromarray(COLOURS)), written(Image.fromarray(COLOURS[::-1].copy()))
    (tmp_path / "two.pngs").write_bytes(one + other)
    piece = ImageFile(tmp_path / "two.pngs", "the other", len(one), len(other))
    assert np.array_equal(load_pixels(piece, ImageTransform((6, 9), (6, 9))), COLOURS[::-1])
    with pytest.raises(UserError, match=r"two.pngs: the other should have .* bytes and has"):
        ImageFile(tmp_path / "two.pngs", "the other", len(one) + 1, len(other)).read()
    with pytest.raises(UserError, match="is a folder; give a picture"):
        ImageFile(tmp_path).read()
    with pytest.raises(UserError, match=r"no picture .*nothing\?\.png"):
        ImageFile(tmp_path / "nothing\n.png").read()
