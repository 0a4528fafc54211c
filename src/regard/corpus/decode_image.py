"""One picture's bytes as pixels: PNG, JPEG or WebP through Pillow, brought to the size that all have.

EXIF's turn is applied, what is transparent lies on white, grey, palettes and CMYK become RGB, 16 bits become the upper 8, and of
a moving picture the first one counts. Anything else is refused by name, and so is what has more pixels than Pillow's limit.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from regard.corpus.image_bytes import ImageFile, printable
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
"""What Pillow raises on files that are not what they should be."""
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # damaged EXIF and the like, in every thread


@dataclass(frozen=True)
class ImageTransform:
    """What every picture is brought to: height and width."""

    size: tuple[int, int]
    resized: tuple[int, int]
    """Before the middle is taken."""
    fit: str = "crop"
    resample: str = "bilinear"

    @staticmethod
    def from_data(data: "BaseImageData") -> "ImageTransform":
        return ImageTransform(data.height_width, data.resized, data.resize_mode, data.resample)

    def apply(self, image: Image.Image) -> np.ndarray:
        """(H, W, 3). Resized and cut in one go, so that a very long picture never exists in full."""
        (height, width), (tall, wide) = self.size, self.resized
        if self.fit == "crop":
            scale = max(tall / image.height, wide / image.width)
            tall, wide = max(tall, int(image.height * scale)), max(wide, int(image.width * scale))
        top, left = (tall - height) // 2, (wide - width) // 2
        across, down = image.width / wide, image.height / tall  # pixels of theirs for one of ours
        box = (left * across, top * down, min((left + width) * across, image.width), min((top + height) * down, image.height))
        return np.asarray(image.resize((width, height), Image.Resampling[self.resample.upper()], box=box))


def load_pixels(picture: ImageFile | np.ndarray, frame: ImageTransform) -> np.ndarray:
    """A picture brought to its frame: (H, W, 3)."""
    return frame.apply(
        Image.fromarray(picture) if isinstance(picture, np.ndarray) else decode_image(picture.read(), str(picture))
    )


def decode_image(data: bytes, name: str, most: int | None = None) -> Image.Image:
    """The whole picture in RGB; one of more than `most` pixels is refused before it is read, and so is what Pillow refuses."""
    try:
        opened = Image.open(BytesIO(data), formats=FORMATS)
        pixels, limit = opened.width * opened.height, Image.MAX_IMAGE_PIXELS
        if most is not None and pixels > most:
            raise UserError(f"{name} has {pixels:,} pixels, more than {most:,}; make it smaller")
        if limit is not None and pixels > limit:
            raise Image.DecompressionBombError
        return to_rgb(ImageOps.exif_transpose(opened))
    except Image.UnidentifiedImageError:
        raise UserError(f"{name} is not a PNG, JPEG or WebP picture; convert it, or leave it out") from None
    except Image.DecompressionBombError:
        raise UserError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels, as a decompression bomb has; "
            "make it smaller, or leave it out"
        ) from None
    except DECODE_ERRORS as error:
        reason = printable(str(error).splitlines()[0]) if str(error) else type(error).__name__
        raise UserError(f"{name} is damaged ({reason}); fetch it again, or leave it out") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """In RGB, eight bits each, on white."""
    if image.mode.startswith("I"):  # 16 bits: Pillow would cut off, not scale
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
