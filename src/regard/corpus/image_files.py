"""Pictures with a label or with captions: from folders, tables of paths, tar shards, and files of pictures laid end to end.

Nothing is decoded here: a picture is the place of its bytes. A shard's members are read where they lie and never extracted; their
names are only names.
"""

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.corpus.examples import ImageExamples
from regard.corpus.image_bytes import ImageFile, printable
from regard.corpus.lines import decode_line
from regard.corpus.table import file_kind, is_natural_number, table_rows
from regard.errors import UserError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
UNSUPPORTED_SUFFIXES = (".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif", ".jp2")
"""Pictures that are not read; whatever else lies in a folder is none."""
CONCATENATED_SUFFIXES = (".jpgs", ".jpegs", ".pngs", ".webps", ".images")
SIDECAR_SUFFIXES = (".cls", ".txt", ".json")
MAX_SIDECAR_BYTES = 2**20


@dataclass(frozen=True)
class ImageColumns:
    """What is read of each picture besides itself, by the numbers or names of columns."""

    label: int | str | None = None
    captions: Sequence[int | str] | None = None

    @property
    def columns(self) -> list[int | str]:
        return [*([] if self.label is None else [self.label]), *(self.captions or [])]

    @property
    def settings(self) -> str:
        return ", ".join([*(["data.label"] if self.label is not None else []), *(["data.captions"] if self.captions else [])])

    def cells(self, cells: Sequence[str]) -> tuple[str, list[str]]:
        """The label and the captions among the cells of `columns`."""
        stripped = [cell.strip() for cell in cells]
        return ("", stripped) if self.label is None else (stripped[0], stripped[1:])


@dataclass(frozen=True)
class FoundImage:
    """A picture, what belongs to it, and the line that says so where there is one."""

    piece: ImageFile
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
    """All pictures of some folders, tables, shards or indices, in order; with their labels, their captions, or both."""
    wanted, found = ImageColumns(label, captions), ImageExamples([], ", ".join(map(str, files)))
    for file in files:
        places: dict[Path, int] = {}
        for one in iterate_images(file, wanted, path, offset):
            where = f"{file}:{one.line}" if one.line else str(one.piece)
            said = [caption for caption in one.captions if caption]
            if label is not None and not one.label:
                raise UserError(f"{where} has no label; give it one, or leave the picture out")
            if captions is not None and not said:
                raise UserError(f"{where} has no caption; give it one, or leave the picture out")
            if captions is not None and one.piece.length is None and one.piece.path in places:
                found.captions[places[one.piece.path]] += said  # one caption a line, the picture named again
                continue
            places[one.piece.path] = len(found)
            found.images.append(one.piece)
            found.lines.append(one.line)
            found.label += [one.label] if label is not None else []
            found.captions += [said] if captions is not None else []
    if not found.images:
        raise UserError(f"{found.name} has no pictures ({', '.join(IMAGE_SUFFIXES)})")
    return found


def iterate_images(file: Path, wanted: ImageColumns, path: int | str, offset: int) -> Iterator[FoundImage]:
    """By what the file is."""
    if file.is_dir():
        return images_in_folder(file, wanted)
    if not file.exists():
        raise UserError(f"no file or folder {file}; relative paths start at data.root")
    if file.suffix == ".tar":
        return images_in_shard(file, wanted)
    if file.name.endswith((".tar.gz", ".tar.xz", ".tar.bz2", ".tgz")):
        raise UserError(f"{file} is a compressed shard, in which nothing can be found; decompress it, pictures hardly shrink")
    if file.name.removesuffix(".gz").removesuffix(".xz").endswith(".index.tsv"):
        return images_in_index(file, wanted, offset)
    if file_kind(file) in (".tsv", ".jsonl"):
        return images_in_table(file, wanted, path)
    raise UserError(f"{file}: give a folder with one folder a label, a .tsv or .jsonl with paths, .tar shards, or an .index.tsv")


def images_in_folder(folder: Path, wanted: ImageColumns) -> Iterator[FoundImage]:
    """`cat/1.png`: what lies under `cat` has this label."""
    if wanted.captions is not None:
        raise UserError(f"{folder} is a folder, whose pictures have labels and no captions; give a .tsv, a .jsonl or .tar shards")
    for inside in sorted(folder.iterdir()):
        for file in sorted(inside.rglob("*")) if inside.is_dir() else [inside]:
            hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            ending = file.suffix.lower()
            if hidden or ending not in (*IMAGE_SUFFIXES, *UNSUPPORTED_SUFFIXES) or file.is_dir():
                continue
            if ending in UNSUPPORTED_SUFFIXES:
                raise UserError(f"{file} is not a PNG, JPEG or WebP picture; convert it, or leave it out")
            if file == inside and wanted.label is not None:
                raise UserError(f"{file} lies beside the labels' folders; put it into one of them, or leave it out")
            yield FoundImage(ImageFile(file), inside.name)


def images_in_table(file: Path, wanted: ImageColumns, path: int | str) -> Iterator[FoundImage]:
    """A path, which starts at the table, and what belongs to it."""
    settings = ", ".join(name for name in ("data.path", wanted.settings) if name)
    for line, (name, *cells) in table_rows(file, [path, *wanted.columns], settings, lists=wanted.captions or ()):
        place = file.parent / name.strip()
        if not is_file(place):
            raise UserError(f"{file}:{line} names a picture that is not there: {printable(str(place))}")
        yield FoundImage(ImageFile(place), *wanted.cells(cells), line)


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long to be one
        return False


def images_in_index(file: Path, wanted: ImageColumns, offset: int) -> Iterator[FoundImage]:
    """Where each picture begins in the file that lies beside the index, how many bytes it has, and what belongs to it."""
    stem = file.name[: file.name.rindex(".index.tsv")]
    laid = [file.with_name(stem + ending) for ending in CONCATENATED_SUFFIXES if file.with_name(stem + ending).is_file()]
    if len(laid) != 1:
        raise UserError(f"{file} needs its pictures beside it in one file: {stem}{' or '.join(CONCATENATED_SUFFIXES)}")
    size = laid[0].stat().st_size
    settings = ", ".join(name for name in ("data.offset", wanted.settings) if name)
    for line, (begin, length, *cells) in table_rows(file, [offset, offset + 1, *wanted.columns], settings):
        if not (is_natural_number(begin) and is_natural_number(length)) or int(begin) + int(length) > size:
            raise UserError(
                f"{file}:{line} says that a picture begins at {printable(begin)} and has {printable(length)} bytes; "
                f"{laid[0].name} has {size:,} (data.offset = {offset})"
            )
        yield FoundImage(ImageFile(laid[0], f"line {line} of {file.name}", int(begin), int(length)), *wanted.cells(cells), line)


def images_in_shard(file: Path, wanted: ImageColumns) -> Iterator[FoundImage]:
    """WebDataset's form: the members whose names are alike up to the first dot belong together."""
    together: dict[str, dict[str, ImageFile]] = {}
    for name, piece in shard_members(file):
        folder, _, base = name.rpartition("/")
        stem, _, ending = base.partition(".")
        ending = "." + ending.lower()
        if stem and ending in (*IMAGE_SUFFIXES, *SIDECAR_SUFFIXES):
            together.setdefault(f"{folder}/{stem}", {})[ending] = piece
    for parts in together.values():
        pieces = [parts[ending] for ending in IMAGE_SUFFIXES if ending in parts]
        if len(pieces) > 1:
            raise UserError(f"{pieces[0]} and {printable(pieces[1].name)} have the same name; a picture is one of them")
        if pieces:
            yield FoundImage(pieces[0], *sidecar_annotations(parts, wanted))


def shard_members(file: Path) -> Iterator[tuple[str, ImageFile]]:
    """The plain files of a shard, as the places of their bytes."""
    size = file.stat().st_size
    try:
        with tarfile.open(file, "r:") as shard:
            for member in shard:
                if not member.isreg() or member.issparse():  # links and devices are nobody's pictures
                    continue
                if member.offset_data + member.size > size:
                    raise UserError(f"{file} is not whole: {printable(member.name)} goes beyond its end; fetch it again")
                yield member.name, ImageFile(file, member.name, member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError, OverflowError, EOFError) as error:
        raise UserError(f"{file} is not a whole tar shard ({printable(str(error))}); fetch it again") from None


def sidecar_annotations(parts: dict[str, ImageFile], wanted: ImageColumns) -> tuple[str, list[str]]:
    """The label and the captions that lie beside a picture in a shard: .cls, the lines of .txt, or fields of .json."""
    fields = sidecar_fields(parts[".json"]) if ".json" in parts else {}
    name = wanted.label if isinstance(wanted.label, str) else "label"
    label = " ".join(sidecar_lines(parts[".cls"])) if ".cls" in parts else str(fields.get(name, ""))
    captions = [line.strip() for line in sidecar_lines(parts[".txt"])] if ".txt" in parts else []
    names = [column for column in wanted.captions or () if isinstance(column, str)] or ["caption", "captions"]
    for value in [] if captions else [fields.get(name) for name in names]:
        captions += [str(one).strip() for one in value] if isinstance(value, list) else [str(value).strip()] if value else []
    return label.strip(), captions


def sidecar_lines(piece: ImageFile) -> list[str]:
    if piece.length is not None and piece.length > MAX_SIDECAR_BYTES:
        raise UserError(f"{piece} has {piece.length:,} bytes; a label or captions have at most {MAX_SIDECAR_BYTES:,}")
    name = Path(str(piece))
    return [decode_line(raw, name, number) for number, raw in enumerate(piece.read().splitlines(), start=1)]


def sidecar_fields(piece: ImageFile) -> dict[str, object]:
    try:
        found = json.loads("\n".join(sidecar_lines(piece)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{piece} is not JSON: {printable(str(error))}") from None
    if not isinstance(found, dict):
        raise UserError(f"{piece} should hold a JSON object, not a {type(found).__name__}")
    return found
