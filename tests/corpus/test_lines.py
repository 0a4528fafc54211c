"""The rules for text files: what is accepted, and what is refused with file and line."""

import gzip
import lzma

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.corpus.lines import read_lines
from regard.errors import UserError

CHARACTERS = st.characters(blacklist_characters="\n\r\0", blacklist_categories=["Cs"])
LINES = st.lists(st.text(CHARACTERS, max_size=12), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(lines=LINES, bom=st.booleans(), crlf=st.booleans(), last=st.booleans(), suffix=st.sampled_from(["", ".gz", ".xz"]))
def test_lines_survive_bom_crlf_compression_and_a_missing_last_newline(tmp_path, lines, bom, crlf, last, suffix):
    """BOM, CRLF, a missing last newline and U+2028 change nothing."""
    end = "\r\n" if crlf else "\n"
    last = last or lines[-1] == ""  # a file that ends in an empty line must end in a newline to show it
    lines = [line.lstrip("\ufeff") if i == 0 else line for i, line in enumerate(lines)]
    data = (b"\xef\xbb\xbf" if bom else b"") + (end.join(lines) + (end if last else "")).encode()
    opener = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
    path = tmp_path / f"text{suffix}"
    with opener(path, "wb") as file:
        file.write(data)
    if not data.removeprefix(b"\xef\xbb\xbf"):
        return
    assert read_lines(path) == lines


def test_unicode_line_separators_are_ordinary_characters(tmp_path):
    (tmp_path / "a").write_bytes("one\u2028still one\u0085 and one\nand two".encode())
    assert read_lines(tmp_path / "a") == ["one\u2028still one\u0085 and one", "and two"]


@pytest.mark.parametrize(
    "data, message",
    [
        (b"fine\nbad \xff\n", r"a:2 is not UTF-8 \(byte 5\)"),
        ("text".encode("utf-16"), "a:1 is UTF-16"),
        ("text\n".encode("utf-16-le"), "a:1 has a NUL byte"),
        (b"fine\nn\0l\n", "a:2 has a NUL byte"),
        (b"", "a is empty"),
    ],
)
def test_files_that_are_not_text_are_refused_with_file_and_line(tmp_path, data, message):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_lines(tmp_path / "a")


def test_missing_files_folders_and_broken_archives_are_refused(tmp_path):
    for name, message in [("nothing", "no file"), (".", "is a folder")]:
        with pytest.raises(UserError, match=message):
            read_lines(tmp_path / name)
    whole = gzip.compress(b"a line\n" * 1000)
    for name, data in [("cut.gz", whole[:-20]), ("plain.gz", b"not gzip"), ("plain.xz", b"not xz")]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match="is not a whole"):
            read_lines(tmp_path / name)
