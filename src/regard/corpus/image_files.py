"""Images with labels or captions from folders, tables of paths, tar shards, and files of concatenated images.

Nothing is decoded here: an image is the location of its bytes. The members of a shard are read in place and never extracted;
their names are only labels.
"""

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.corpus.examples import ImageExamples, ImageFile
from regard.corpus.lines import decode_line, missing_file, printable
from regard.corpus.table import TABLE_KINDS, file_kind, is_natural_number, table_rows
from regard.errors import UserError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
UNSUPPORTED_SUFFIXES = (".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif", ".jp2")
"""Image formats that are refused; other files in a folder are ignored."""
CONCATENATED_SUFFIXES = (".jpgs", ".jpegs", ".pngs", ".webps", ".images")
SIDECAR_SUFFIXES = (".cls", ".txt", ".json")
MAX_SIDECAR_BYTES = 2**20


@dataclass(frozen=True)
class ImageColumns:
    """What is read for each image besides itself, by the numbers or names of columns."""

    label: int | str | None = None
    captions: Sequence[int | str] | None = None

    @property
    def columns(self) -> list[int | str]:
        return [*([] if self.label is None else [self.label]), *(self.captions or [])]

    def settings(self, position: str) -> str:
        """Return the names of the settings in use, after the one that says where an image is."""
        found = {position: True, "data.label": self.label is not None, "data.captions": bool(self.captions)}
        return ", ".join(name for name, used in found.items() if used)

    def cells(self, cells: Sequence[str]) -> tuple[str, list[str]]:
        """Return the label and the captions among the cells of `columns`."""
        stripped = [cell.strip() for cell in cells]
        return ("", stripped) if self.label is None else (stripped[0], stripped[1:])


@dataclass(frozen=True)
class AnnotatedImage:
    """An image, its annotations, and the line that holds them if there is one."""

    image: ImageFile
    label: str = ""
    captions: Sequence[str] = ()
    line: int = 0


def read_images(
    files: Sequence[Path],
    *,
    label: int | str | None = None,
    captions: Sequence[int | str] | None = None,
    path: int | str = 0,
    offset: int = 1,
) -> ImageExamples:
    """Read all images of folders, tables, shards or indices, in order, with their labels, captions, or both."""
    chosen, examples = ImageColumns(label, captions), ImageExamples([], name=", ".join(map(str, files)))
    for file in files:
        index_of: dict[Path, int] = {}
        for one in _iterate_images(file, chosen, path, offset):
            where = f"{file}:{one.line}" if one.line else str(one.image)
            own_captions = [caption for caption in one.captions if caption]
            if label is not None and not one.label:
                raise UserError(f"{where} has no label; give it one, or leave the image out")
            if captions is not None and not own_captions:
                raise UserError(f"{where} has no caption; give it one, or leave the image out")
            if captions is not None and one.image.length is None and one.image.path in index_of:
                examples.captions[index_of[one.image.path]] += own_captions  # one caption per line: the image is named again
                continue
            index_of[one.image.path] = len(examples)
            examples.images.append(one.image)
            examples.lines.append(one.line)
            examples.label += [one.label] if label is not None else []
            examples.captions += [own_captions] if captions is not None else []
    if not examples.images:
        raise UserError(f"{examples.name} has no images ({', '.join(IMAGE_SUFFIXES)})")
    return examples


def _iterate_images(file: Path, chosen: ImageColumns, path: int | str, offset: int) -> Iterator[AnnotatedImage]:
    """Yield the images of a file, by what kind of file it is."""
    if file.is_dir():
        return _images_in_folder(file, chosen)
    if not file.exists():
        raise missing_file(file, "file or folder")
    if file.suffix == ".tar":
        return _images_in_shard(file, chosen)
    if file.name.endswith((".tar.gz", ".tar.xz", ".tar.bz2", ".tgz")):
        raise UserError(f"{file} is a compressed shard, which allows no random access; decompress it, images hardly compress")
    if file.name.removesuffix(".gz").removesuffix(".xz").endswith(".index.tsv"):
        return _images_in_index(file, chosen, offset)
    if file_kind(file) in TABLE_KINDS:
        return _images_in_table(file, chosen, path)
    raise UserError(
        f"{file}: give a folder with one folder per label, a table with paths (.tsv, .csv, .jsonl, .parquet), .tar shards, "
        "or an .index.tsv"
    )


def _images_in_folder(folder: Path, chosen: ImageColumns) -> Iterator[AnnotatedImage]:
    """Yield the images of a folder: those under `cat/` have the label `cat`."""
    if chosen.captions is not None:
        raise UserError(f"{folder} is a folder, whose images have labels and no captions; give a .tsv, a .jsonl or .tar shards")
    for inside in sorted(folder.iterdir()):
        for file in sorted(inside.rglob("*")) if inside.is_dir() else [inside]:
            hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            suffix = file.suffix.lower()
            if hidden or suffix not in (*IMAGE_SUFFIXES, *UNSUPPORTED_SUFFIXES) or file.is_dir():
                continue
            if suffix in UNSUPPORTED_SUFFIXES:
                raise UserError(f"{file} is not a PNG, JPEG or WebP image; convert it, or leave it out")
            if file == inside and chosen.label is not None:
                raise UserError(f"{file} is beside the label folders; put it into one of them, or leave it out")
            yield AnnotatedImage(ImageFile(file), inside.name)


def _images_in_table(file: Path, chosen: ImageColumns, path: int | str) -> Iterator[AnnotatedImage]:
    """Yield the images of a table of paths, which are relative to the table, and annotations."""
    for line, (name, *cells) in table_rows(
        file, [path, *chosen.columns], chosen.settings("data.path"), lists=chosen.captions or ()
    ):
        place = file.parent / name.strip()
        if not os.path.isfile(place):  # noqa: PTH113 Path.is_file raises for a name that is too long
            raise UserError(f"{file}:{line} names an image that does not exist: {printable(str(place))}")
        yield AnnotatedImage(ImageFile(place), *chosen.cells(cells), line)


def _images_in_index(file: Path, chosen: ImageColumns, offset: int) -> Iterator[AnnotatedImage]:
    """Yield the images of an index: offset and length of each in the file beside the index, and annotations."""
    stem = file.name[: file.name.rindex(".index.tsv")]
    image_files = [file.with_name(stem + suffix) for suffix in CONCATENATED_SUFFIXES if file.with_name(stem + suffix).is_file()]
    if len(image_files) != 1:
        raise UserError(f"{file} needs its images beside it in one file: {stem}{' or '.join(CONCATENATED_SUFFIXES)}")
    size = image_files[0].stat().st_size
    for line, (begin, length, *cells) in table_rows(file, [offset, offset + 1, *chosen.columns], chosen.settings("data.offset")):
        if not (is_natural_number(begin) and is_natural_number(length)) or int(begin) + int(length) > size:
            raise UserError(
                f"{file}:{line} says that an image begins at {printable(begin)} and has {printable(length)} bytes; "
                f"{image_files[0].name} has {size:,} (data.offset = {offset})"
            )
        yield AnnotatedImage(
            ImageFile(image_files[0], f"line {line} of {file.name}", int(begin), int(length)), *chosen.cells(cells), line
        )


def _images_in_shard(file: Path, chosen: ImageColumns) -> Iterator[AnnotatedImage]:
    """Yield the images of a shard in WebDataset's format: members with the same name up to the first dot belong samples."""
    samples: dict[str, dict[str, ImageFile]] = {}
    for name, image in _shard_members(file):
        folder, _, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")
        suffix = "." + suffix.lower()
        if stem and suffix in (*IMAGE_SUFFIXES, *SIDECAR_SUFFIXES):
            samples.setdefault(f"{folder}/{stem}", {})[suffix] = image
    for parts in samples.values():
        images = [parts[suffix] for suffix in IMAGE_SUFFIXES if suffix in parts]
        if len(images) > 1:
            raise UserError(f"{images[0]} and {printable(images[1].name)} have the same name; keep one of them")
        if images:
            yield AnnotatedImage(images[0], *_sidecar_annotations(parts, chosen))


def _shard_members(file: Path) -> Iterator[tuple[str, ImageFile]]:
    """Yield the regular files of a shard, as the locations of their bytes."""
    size = file.stat().st_size
    try:
        with tarfile.open(file, "r:") as shard:
            for member in shard:
                if not member.isreg() or member.issparse():  # links and devices are not images
                    continue
                if member.offset_data + member.size > size:
                    raise UserError(f"{file} is truncated: {printable(member.name)} goes beyond its end; fetch it again")
                yield member.name, ImageFile(file, member.name, member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError, OverflowError, EOFError) as error:
        raise UserError(f"{file} is not a complete tar shard ({printable(str(error))}); fetch it again") from None


def _sidecar_annotations(parts: dict[str, ImageFile], chosen: ImageColumns) -> tuple[str, list[str]]:
    """Return the label and captions of an image in a shard: from .cls, the lines of .txt, or fields of .json."""
    fields = _sidecar_fields(parts[".json"]) if ".json" in parts else {}
    name = chosen.label if isinstance(chosen.label, str) else "label"
    label = " ".join(_sidecar_lines(parts[".cls"])) if ".cls" in parts else str(fields.get(name, ""))
    captions = [line.strip() for line in _sidecar_lines(parts[".txt"])] if ".txt" in parts else []
    names = [column for column in chosen.captions or () if isinstance(column, str)] or ["caption", "captions"]
    for value in [] if captions else [fields.get(name) for name in names]:
        captions += [str(one).strip() for one in value] if isinstance(value, list) else [str(value).strip()] if value else []
    return label.strip(), captions


def _sidecar_lines(image: ImageFile) -> list[str]:
    if image.length is not None and image.length > MAX_SIDECAR_BYTES:
        raise UserError(f"{image} has {image.length:,} bytes; a label or captions have at most {MAX_SIDECAR_BYTES:,}")
    name = Path(str(image))
    return [decode_line(raw, name, number) for number, raw in enumerate(image.read().splitlines(), start=1)]


def _sidecar_fields(image: ImageFile) -> dict[str, object]:
    try:
        found = json.loads("\n".join(_sidecar_lines(image)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{image} is not JSON: {printable(str(error))}") from None
    if not isinstance(found, dict):
        raise UserError(f"{image} should hold a JSON object, not a {type(found).__name__}")
    return found
