"""Decode images: PNG, JPEG or WebP bytes through Pillow to RGB pixels of one size.

The EXIF orientation is applied, transparency is composed on white, grey, palettes and CMYK become RGB, 16 bits become 8,
and of an animation the first frame counts. Anything else is refused by name, and so are images beyond Pillow's pixel limit.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from regard.corpus.examples import ImageFile
from regard.corpus.lines import printable
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.recipe import BaseImageData

FORMATS = ("PNG", "JPEG", "WEBP")
DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    AssertionError,
    AttributeError,
    struct.error,
    zlib.error,
)
"""What Pillow raises on malformed files."""
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # damaged EXIF and the like, in every thread


@dataclass(frozen=True)
class ImageTransform:
    """Resize and crop an image to a height and width."""

    size: tuple[int, int]
    resized: tuple[int, int]
    """Height and width before the centre crop."""
    fit: str = "crop"
    resample: str = "bilinear"

    @staticmethod
    def from_data(data: "BaseImageData") -> "ImageTransform":
        return ImageTransform(data.height_width, data.resized, data.resize_mode, data.resample)

    def apply(self, image: Image.Image) -> np.ndarray:
        """Return pixels (H, W, 3). Resizing and cropping are one step, so that a very long image is never resized in full."""
        (height, width), (tall, wide) = self.size, self.resized
        if self.fit == "crop":
            scale = max(tall / image.height, wide / image.width)
            tall, wide = max(tall, int(image.height * scale)), max(wide, int(image.width * scale))
        top, left = (tall - height) // 2, (wide - width) // 2
        across, down = image.width / wide, image.height / tall  # input pixels per output pixel
        box = (left * across, top * down, min((left + width) * across, image.width), min((top + height) * down, image.height))
        return np.asarray(image.resize((width, height), Image.Resampling[self.resample.upper()], box=box))


def load_pixels(image: ImageFile | np.ndarray, transform: ImageTransform) -> np.ndarray:
    """Return the transformed pixels (H, W, 3) of an image."""
    return transform.apply(Image.fromarray(image) if isinstance(image, np.ndarray) else decode_image(image.read(), str(image)))


def count_pixels(data: bytes) -> int:
    """Return the number of pixels that an image's header claims; 0 if that cannot be read."""
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as opened:
            return opened.width * opened.height
    except (Image.DecompressionBombError, *DECODE_ERRORS):
        return 0


def decode_image(data: bytes, name: str, max_pixels: int | None = None) -> Image.Image:
    """Return the whole image in RGB; refuse one of more than `max_pixels` before it is decoded, and what Pillow refuses."""
    try:
        opened = Image.open(BytesIO(data), formats=FORMATS)
        pixels, limit = opened.width * opened.height, Image.MAX_IMAGE_PIXELS
        if max_pixels is not None and pixels > max_pixels:
            raise UserError(f"{name} has {pixels:,} pixels, more than {max_pixels:,}; make it smaller")
        if limit is not None and pixels > limit:
            raise Image.DecompressionBombError
        return to_rgb(ImageOps.exif_transpose(opened))
    except UnidentifiedImageError:
        raise UserError(f"{name} is not a PNG, JPEG or WebP image; convert it, or leave it out") from None
    except Image.DecompressionBombError:
        raise UserError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels, as a decompression bomb has; "
            "make it smaller, or leave it out"
        ) from None
    except DECODE_ERRORS as error:
        reason = printable(str(error).splitlines()[0]) if str(error) else type(error).__name__
        raise UserError(f"{name} is damaged ({reason}); fetch it again, or leave it out") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB with 8 bits per channel, transparency composed on white."""
    if image.mode.startswith("I"):  # 16 bits: Pillow would clip, not scale
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
