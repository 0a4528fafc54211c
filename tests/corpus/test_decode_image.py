"""Images of every sort become RGB of one size, or are refused by name in one line."""

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
from regard.corpus.examples import ImageFile
from regard.errors import UserError

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 9, 3)).astype(np.uint8)
SMOOTH = np.asarray(Image.fromarray(COLOURS).resize((90, 60), Image.Resampling.BICUBIC))


def encode(image, kind="PNG", **options):
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(data):
    return np.asarray(decode_image(data, "an image")).astype(int)


@pytest.mark.parametrize("kind, options", [("PNG", {}), ("WEBP", {"lossless": True})])
def test_lossless_formats_keep_every_pixel(kind, options):
    assert np.array_equal(decode(encode(Image.fromarray(COLOURS), kind, **options)), COLOURS)


def test_jpeg_is_close_to_the_original():
    assert np.abs(decode(encode(Image.fromarray(SMOOTH), "JPEG", quality=95)) - SMOOTH).mean() < 3


@pytest.mark.parametrize("mode", ["L", "1", "P"])
def test_grey_bilevel_and_palette_images_become_rgb(mode):
    image = Image.fromarray(SMOOTH).convert(mode)
    assert np.array_equal(decode(encode(image)), np.asarray(image.convert("RGB")))


def test_transparency_is_composed_on_white():
    alpha = np.zeros((6, 9), np.uint8)
    alpha[:, 3:6], alpha[:, 6:] = 128, 255
    image = Image.fromarray(np.dstack([COLOURS, alpha]))
    found = decode(encode(image))
    assert (found[:, :3] == 255).all() and np.array_equal(found[:, 6:], COLOURS[:, 6:])
    assert np.abs(found[:, 3:6] - (255 + COLOURS[:, 3:6].astype(int)) / 2).max() <= 2
    grey = Image.fromarray(np.dstack([COLOURS[..., 0], alpha]))
    assert grey.mode == "LA" and (decode(encode(grey))[:, :3] == 255).all()
    palette = Image.fromarray(COLOURS[:1]).quantize(4)
    first = int(np.asarray(palette)[0, 0])
    assert (decode(encode(palette, transparency=first))[0, 0] == 255).all()


def test_sixteen_bits_are_scaled_not_clipped():
    deep = np.linspace(0, 65535, 54).astype(np.uint16).reshape(6, 9)
    found = decode(encode(Image.fromarray(deep)))
    assert np.array_equal(found[..., 0], deep >> 8) and np.array_equal(found[..., 0], found[..., 2])


def test_cmyk_becomes_rgb():
    image = Image.fromarray(SMOOTH).convert("CMYK")
    assert np.abs(decode(encode(image, "JPEG", quality=95)) - SMOOTH).mean() < 6


@pytest.mark.parametrize(
    "orientation, turned",
    [(3, lambda a: a[::-1, ::-1]), (6, lambda a: np.rot90(a, -1)), (8, lambda a: np.rot90(a)), (2, lambda a: a[:, ::-1])],
)
def test_exif_orientation_is_applied(orientation, turned):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(decode(encode(Image.fromarray(COLOURS), exif=exif)), turned(COLOURS))


def test_first_frame_of_an_animation_is_used():
    frames = [Image.fromarray(np.full((4, 4, 3), shade, np.uint8)) for shade in (10, 200)]
    for kind, options in (("WEBP", {"lossless": True}), ("PNG", {})):
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert (decode(data) == 10).all()


def refused(data, match):
    with pytest.raises(UserError, match=match) as caught:
        decode_image(data, "a/b.png")
    assert str(caught.value).startswith("a/b.png ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_image_is_refused(kind, share):
    data = encode(Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 80, 3)).astype(np.uint8)), kind)
    refused(data[: int(share * len(data))], "is damaged|is not a PNG")


@pytest.mark.parametrize("data", [b"", b"a text", *(encode(Image.fromarray(COLOURS), kind) for kind in ("GIF", "BMP"))])
def test_unsupported_formats_are_refused(data):
    refused(data, "is not a PNG, JPEG or WebP image; convert it")


@pytest.mark.parametrize("limit", [40, 20])  # Pillow warns of the one and refuses the other
def test_decompression_bomb_is_refused(monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    refused(encode(Image.fromarray(COLOURS)), f"more than {limit} pixels")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 54)
    assert decode(encode(Image.fromarray(COLOURS))).shape == (6, 9, 3)


def test_decompression_bomb_is_refused_in_every_thread(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    small, large = encode(Image.fromarray(COLOURS[:4])), encode(Image.fromarray(COLOURS))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they take turns in the middle of it
    with ThreadPoolExecutor(8) as pool:
        told = [pool.submit(refused, large, "more than 40 pixels") if i % 2 else pool.submit(decode, small) for i in range(2000)]
    sys.setswitchinterval(before)
    assert not [error for one in told if (error := one.exception())]


WHOLE = {kind: encode(Image.fromarray(SMOOTH), kind) for kind in ("PNG", "JPEG", "WEBP")}


@given(st.sampled_from(sorted(WHOLE)), st.integers(0, 10**6), st.integers(1, 12))
def test_corrupted_bytes_give_an_image_or_a_user_error(kind, seed, number):
    data, chance = bytearray(WHOLE[kind]), random.Random(seed)
    for _ in range(number):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        assert decode(bytes(data)).shape[2] == 3
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("fit", ["crop", "stretch"])
@pytest.mark.parametrize("size, resized", [((32, 32), (32, 32)), ((20, 30), (24, 36)), ((64, 16), (64, 16))])
def test_resize_and_crop_in_one_step_equals_resize_then_crop(fit, size, resized):
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


def test_image_of_the_right_size_is_unchanged_and_a_thin_one_is_not_resized_in_full():
    assert np.array_equal(ImageTransform((6, 9), (6, 9)).apply(Image.fromarray(COLOURS)), COLOURS)
    thin = Image.new("RGB", (1, 60_000), "red")  # resized in full it would have 3 · 10^9 pixels
    assert (ImageTransform((224, 224), (224, 224)).apply(thin) == [255, 0, 0]).all()


def test_image_files_are_read_at_their_offsets(tmp_path):
    one, other = encode(Image.fromarray(COLOURS)), encode(Image.fromarray(COLOURS[::-1].copy()))
    (tmp_path / "two.pngs").write_bytes(one + other)
    piece = ImageFile(tmp_path / "two.pngs", "the other", len(one), len(other))
    assert np.array_equal(load_pixels(piece, ImageTransform((6, 9), (6, 9))), COLOURS[::-1])
    with pytest.raises(UserError, match=r"two.pngs: the other should have .* bytes and has"):
        ImageFile(tmp_path / "two.pngs", "the other", len(one) + 1, len(other)).read()
    with pytest.raises(UserError, match="is a folder; give an image"):
        ImageFile(tmp_path).read()
    with pytest.raises(UserError, match=r"no image .*nothing\?\.png"):
        ImageFile(tmp_path / "nothing\n.png").read()
