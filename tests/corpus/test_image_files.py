"""Folders, tables, shards and concatenated files give the same images; errors name file and line."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from regard.corpus.dataset import hold_out, read_dataset
from regard.corpus.examples import ImageExamples
from regard.corpus.image_files import read_images
from regard.errors import UserError
from regard.recipe import LabelledImageData

SHADES = {"dark": [10, 20, 30], "light": [200, 220]}


def png(shade):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


def tar(path, members):
    """Members by name: bytes, or the target of a link."""
    with tarfile.open(path, "w") as shard:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                shard.addfile(info)
            else:
                info.size = len(content)
                shard.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def formats(tmp_path):
    """The same images in every file format."""
    rows = [(label, shade) for label, shades in SHADES.items() for shade in shades]
    for label, shade in rows:
        (tmp_path / "folder" / label / "deeper").mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / label / "deeper" / f"{shade}.PNG").write_bytes(png(shade))
    for name in (".DS_Store", "notes.txt", ".hidden.png"):
        (tmp_path / "folder" / "dark" / name).write_bytes(b"?")
    (tmp_path / "folder" / "empty").mkdir()
    lines = [f"folder/{label}/deeper/{shade}.PNG\t{label}\n" for label, shade in rows]
    (tmp_path / "a.tsv").write_text("".join(lines))
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"file": path, "kind": label}) + "\n" for path, label in (line.strip().split("\t") for line in lines))
    )
    concatenated, index = b"", ""
    for label, shade in rows:
        index += f"{label}\t{len(concatenated)}\t{len(png(shade))}\n"
        concatenated += png(shade)
    (tmp_path / "c.pngs").write_bytes(concatenated)
    (tmp_path / "c.index.tsv").write_text(index)
    tar(
        tmp_path / "d.tar",
        [
            member
            for i, (label, shade) in enumerate(rows)
            for member in ((f"x/{i:04}.png", png(shade)), (f"x/{i:04}.cls", f"{label}\n".encode()))
        ],
    )
    tar(
        tmp_path / "e.tar",
        [
            member
            for i, (label, shade) in enumerate(rows)
            for member in ((f"{i:04}.json", json.dumps({"label": label}).encode()), (f"{i:04}.png", png(shade)))
        ],
    )
    return tmp_path


FORMATS = {
    "folder": {"label": 1},
    "a.tsv": {"label": 1},
    "b.jsonl": {"label": "kind", "path": "file"},
    "c.index.tsv": {"label": 0},
    "d.tar": {"label": 1},
    "e.tar": {"label": "label"},
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_file_format_gives_the_same_images(formats, name):
    found = read_images([formats / name], **FORMATS[name])
    assert found.label == ["dark"] * 3 + ["light"] * 2 and found.labels() == ["dark", "light"]
    assert [image.read() for image in found.images] == [png(shade) for shades in SHADES.values() for shade in shades]
    assert found.digests == read_images([formats / "folder"], label=1).digests
    assert all("\n" not in found.where(i) and str(formats) in found.where(i) for i in range(5))


def test_recipe_reads_several_image_files_in_order(formats):
    data = LabelledImageData(root=str(formats), train=["folder", "d.tar"], valid=["a.tsv"], test={"concatenated": ["e.tar"]})
    found = read_dataset(data)
    assert len(found.train) == 10 and len(found.valid) == 5 and len(found.tests["concatenated"]) == 5
    assert found.train.label[5:] == found.valid.label == found.train.label[:5]


def test_held_out_sets_share_no_image_whatever_its_name(tmp_path):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for i in range(20):
            for copy in range(2):
                (tmp_path / label / f"{i}-{copy}.png").write_bytes(png([i, 7 if label == "a" else 90, 3]))
    everything = read_images([tmp_path], label=1)
    train, valid, test = hold_out(everything, 5)
    assert (len(train), len(valid), len(test)) == (60, 10, 10)
    assert not set(train.digests) & set(valid.digests) and not set(valid.digests) & set(test.digests)
    assert train.digests == ImageExamples(train.images).digests  # carried along, not read again
    with pytest.raises(UserError, match=r"has 40 distinct examples; data.held_out = 11"):
        hold_out(everything, 11)


def test_captions_from_columns_lines_and_sidecars(formats):
    (formats / "columns.tsv").write_text("folder/dark/deeper/10.PNG\tone\ttwo\nfolder/dark/deeper/20.PNG\tthree\t\n")
    assert read_images([formats / "columns.tsv"], captions=[1, 2]).captions == [["one", "two"], ["three"]]
    (formats / "lines.tsv").write_text(
        "folder/dark/deeper/10.PNG\tone\nfolder/dark/deeper/20.PNG\tthree\nfolder/dark/deeper/10.PNG\ttwo\n"
    )
    found = read_images([formats / "lines.tsv"], captions=[1])
    assert found.captions == [["one", "two"], ["three"]] and len(found.images) == 2
    assert found.texts() == [["one", "two", "three"]]
    tar(
        formats / "t.tar",
        [
            ("1.png", png(1)),
            ("1.txt", b"one\ntwo\n"),
            ("2.txt", b"three"),
            ("2.png", png(2)),
            ("3.png", png(3)),
            ("3.json", json.dumps({"captions": ["four", "five"], "label": "x"}).encode()),
        ],
    )
    assert read_images([formats / "t.tar"], captions=[1]).captions == [["one", "two"], ["three"], ["four", "five"]]
    (formats / "c2.pngs").write_bytes(png(1) + png(2))
    (formats / "c2.index.tsv").write_text(f"n\t0\t{len(png(1))}\tone\ttwo\nm\t{len(png(1))}\t{len(png(2))}\tthree\tfour\n")
    both = read_images([formats / "c2.index.tsv"], label=0, captions=[3, 4])
    assert both.label == ["n", "m"] and both.captions == [["one", "two"], ["three", "four"]]
    with pytest.raises(UserError, match="have labels and no captions"):
        read_images([formats / "folder"], captions=[1])


def test_shard_members_are_never_extracted_whatever_their_names(tmp_path):
    before = tmp_path / "home"
    before.mkdir()
    odd = ["../../evil.png", "/etc/evil2.png", "a\nb.png", "nul/../x.png", "ü" * 90 + ".png", "-rf.PNG"]
    members = [(name, png(i)) for i, name in enumerate(odd)]
    members += [(name.rpartition(".")[0] + ".cls", b"odd") for name in odd]
    path = tar(before / "odd.tar", [*members, ("link.png", "/etc/passwd"), (".hidden.png", png(9)), ("notes.md", b"#")])
    found = read_images([path], label=1)
    assert [image.read() for image in found.images] == [png(i) for i in range(len(odd))]
    assert all("\n" not in found.where(i) for i in range(len(odd)))
    assert [entry.name for entry in tmp_path.rglob("*")] == ["home", "odd.tar"]


@pytest.mark.parametrize("cut, match", [(700, "goes beyond its end"), (100, "not a complete tar"), (0, "not a complete tar")])
def test_truncated_shard_is_refused(tmp_path, cut, match):
    path = tar(tmp_path / "a.tar", [("1.png", png(1) * 9), ("1.cls", b"x")])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=match):
        read_images([path], label=1)


MEMBERS = {
    "two.tar": ([("1.png", png(1)), ("1.jpg", png(1)), ("1.cls", b"x")], "have the same name"),
    "bare.tar": ([("1.png", png(1))], "1.png has no label"),
    "large.tar": ([("1.png", png(1)), ("1.cls", b"x" * 2**21)], "a label or captions have at most"),
    "json.tar": ([("1.png", png(1)), ("1.json", b"{")], "1.json is not JSON"),
    "list.tar": ([("1.png", png(1)), ("1.json", b"[]")], "should hold a JSON object, not a list"),
    "binary.tar": ([("1.png", png(1)), ("1.cls", b"\xff\xfe\xff")], "UTF-16|not UTF-8"),
    "none.tar": ([("1.txt", b"x")], "has no images"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_errors_in_a_shard_name_the_member(tmp_path, name):
    members, match = MEMBERS[name]
    with pytest.raises(UserError, match=match) as caught:
        read_images([tar(tmp_path / name, members)], label=1)
    assert name in str(caught.value) and "\n" not in str(caught.value)


FILES = {
    "a.tsv": ("nowhere.png\tx\n", "a.tsv:1 names an image that does not exist: .*nowhere.png"),
    "b.tsv": ("here.png\n", "b.tsv:1 has 1 columns; data.path, data.label"),
    "c.tsv": ("here.png\t \n", "c.tsv:1 has no label"),
    "d.jsonl": ('{"path": "here.png"}\n', "d.jsonl:1 lacks a text field"),
    "e.tsv": ("x" * 5000 + "\tx\n", "e.tsv:1 names an image that does not exist"),
    "f.tsv": ("here.png/no.png\tx\n", "f.tsv:1 names an image that does not exist"),
    "g.index.tsv": ("x\t0\t100000\n", r"g.index.tsv:1 says that an image begins at 0 and has 100000 bytes; g.pngs has"),
    "h.index.tsv": ("x\t-1\t3\n", "h.index.tsv needs its images beside it in one file: h.jpgs or"),
    "i.txt": ("x", "give a folder with one folder per label"),
    "j.tar.gz": ("x", "is a compressed shard"),
}


@pytest.mark.parametrize("name", FILES)
def test_errors_in_a_table_name_file_and_line(tmp_path, name):
    (tmp_path / "here.png").write_bytes(png(1))
    (tmp_path / "g.pngs").write_bytes(png(1))
    text, match = FILES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=match) as caught:
        read_images([tmp_path / name], label=1 if "index" not in name else 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("begin", ["-1", "a", "1e3", "٣x"])
def test_offsets_that_are_no_numbers_are_refused(tmp_path, begin):
    (tmp_path / "g.pngs").write_bytes(png(1))
    (tmp_path / "g.index.tsv").write_text(f"x\t{begin}\t3\n")
    with pytest.raises(UserError, match=r"g.index.tsv:1 says that an image begins at"):
        read_images([tmp_path / "g.index.tsv"], label=0)


def test_malformed_image_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"no file or folder .*nothing; relative paths start at data.root"):
        read_images([tmp_path / "nothing"], label=1)
    with pytest.raises(UserError, match="has no images"):
        read_images([tmp_path], label=1)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.gif").write_bytes(b"GIF89a")
    with pytest.raises(UserError, match=r"a.gif is not a PNG, JPEG or WebP image"):
        read_images([tmp_path], label=1)
    (tmp_path / "cat" / "a.gif").unlink()
    (tmp_path / "b.png").write_bytes(png(1))
    with pytest.raises(UserError, match=r"b.png is beside the label folders"):
        read_images([tmp_path], label=1)


def test_symlinked_label_folder_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "1.png").write_bytes(png(1))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "cat").symlink_to(tmp_path / "there")
    assert read_images([tmp_path / "set"], label=1).label == ["cat"]
