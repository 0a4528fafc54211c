"""The tour: its pages are read and run as notebooks are, print the lecture's numbers as they truly are, and become a site."""

import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "tour").glob("[0-9]*.py"))


@pytest.fixture(scope="module")
def docs():
    """docs/build.py, with what it has of its neighbours."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_build"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture
def ran(docs, tmp_path, monkeypatch):
    """All that the cells of a page print."""
    monkeypatch.setattr(docs.shown, "FOLDER", tmp_path)

    def run(name):
        path = ROOT / "docs" / "tour" / name
        return [one for _, one in docs.run(path, name) if one is not None]

    return run


LINE = st.text("ab=1+ ()#", max_size=12).filter(lambda line: "# %%" not in line)


@given(st.lists(st.tuples(st.booleans(), st.lists(LINE, min_size=1, max_size=4)), max_size=5))
def test_cells_are_what_was_written(docs, wanted):
    """Marks and empty cells fall away; every other line stays, at the number it had."""
    lines = []
    for words, inside in wanted:
        lines += ["# %% [markdown]", *(f"# {line}" for line in inside)] if words else ["# %%", *inside]
    found = docs.cells("\n".join(lines))
    kept = [(words, "\n".join(inside).strip()) for words, inside in wanted]
    spoken = [(cell.words, cell.text.strip()) for cell in found if cell.text.strip()]
    assert spoken == [one for one in kept if one[1]]
    assert all(lines[cell.line - 1].removeprefix("# ").strip() == cell.text.split("\n")[0].strip() for cell in found)


def test_code_among_words_is_refused(docs):
    with pytest.raises(docs.Failed, match=r"a\.py:3: every line"):
        docs.cells("# %% [markdown]\n# a\nx = 1\n", "a.py")


def test_cells_share_one_namespace_and_pages_do_not(docs, tmp_path):
    path = tmp_path / "a.py"
    path.write_text('# %%\nx = 2\nprint("said")\n# %% [markdown]\n# words\n# %%\nx * 21\n')
    first, words, last = (one for _, one in docs.run(path, "a.py"))
    assert (first.printed, first.value, words, last.value) == ("said\n", None, None, 42)
    path.write_text("# %%\nx\n")
    with pytest.raises(docs.Failed, match="NameError"):
        list(docs.run(path, "a.py"))


@pytest.mark.parametrize("bad", ["1 / 0", "import sys\nsys.exit(0)", "def"])
def test_a_cell_that_fails_is_named(docs, tmp_path, bad):
    path = tmp_path / "a.py"
    path.write_text(f"# %% [markdown]\n# # a\n\n# %%\n{bad}\n")
    with pytest.raises(docs.Failed, match=r"docs/a\.py, cell 2 \(line 5\): (ZeroDivision|SystemExit|Syntax)"):
        list(docs.run(path, "docs/a.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_words_and_code_with_a_title(docs, path):
    """It is Python, and the tour's first page leads to it."""
    found = docs.cells(path.read_text(encoding="utf-8"), path.name)
    assert found[0].words and found[0].text.startswith("# ") and docs.title_of(path)
    compile(path.read_text(encoding="utf-8"), path.name, "exec")
    assert not all(cell.words for cell in found)
    assert f"(tour/{path.name})" in (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")


def test_scaling_in_numbers(ran):
    said = "".join(one.printed for one in ran("01-scores.py"))
    assert "scores 112, 96  weights 1.00, 0.00" in said and "scores 14, 12  weights 0.88, 0.12" in said
    found = [float(number) for number in re.findall(r"own score ([-+\d.e]+),", said)]
    expected = [weight * (1 - weight) for weight in (1 / (1 + math.exp(-gap)) for gap in (16, 2))]
    assert found == pytest.approx(expected, rel=0.01) and found[0] < 1e-6 < 0.1 < found[1]


def test_masking_in_numbers(ran):
    """The true softmax of each row, and never that of the deck but where it is called one."""
    said = "".join(one.printed for one in ran("02-masks.py"))
    rows = [[0.11], [0.19, 0.53], [0.81, 0.21, 0.05], [0.51, 0.43, 0.12, 0.03]]
    printed = [[float(number) for number in re.findall(r"[\d.]+", line)] for line in said.splitlines()[:4]]
    for row, scores in zip(printed, rows):
        true = torch.tensor(scores).softmax(0).tolist()
        assert row == pytest.approx([*true, *[0.0] * (4 - len(true))], abs=0.0051)
    assert printed[1][:2] == [0.42, 0.58] and said.count("0.48, 0.52") == 1
    assert "of a quarter" in next(line for line in said.splitlines() if "0.48" in line)
    before, after = zip(*re.findall(r"before tensor\((.*?)\), masked after tensor\((.*?)\)", said))
    assert len(before) == 2 and before[0] == before[1] and after[0] != after[1]


def test_norms_in_numbers(ran):
    """Layer norm centres words and keeps a sentence apart from others; batch norm centres features and does not."""
    said = "".join(one.printed for one in ran("05-norms.py"))
    within = {
        name: (float(a), float(b))
        for name, a, b in re.findall(
            r"(\w+) norm: the mean of a word is within ([\d.]+) of 0, the mean of a feature within ([\d.]+)", said
        )
    }
    assert within["layer"][0] == 0 < within["layer"][1] and within["batch"][1] == 0 < within["batch"][0]
    change = {name: float(most) for name, most in re.findall(r"(\w+) norm: the first sentence changes by at most ([\d.]+)", said)}
    assert change["layer"] == 0 < change["batch"]


def test_a_value_with_a_picture_is_shown(ran):
    pictures = [one.value for one in ran("05-norms.py") if one.value is not None]
    assert len(pictures) == 1 and pictures[0]._repr_svg_().count("<svg") == 1 and pictures[0]._repr_png_() is None


def test_links_lead_to_pages_pictures_and_source(docs, tmp_path):
    site = docs.Site(tmp_path)
    site.plan()
    page = site.pages[ROOT / "docs" / "transformer.md"]
    text = "# a\n\n[s](settings.md#a) [c](../src/regard/errors.py)\n\n![p](pictures/shapes.png)\n\n|a|\n|-|\n|b|\n"
    made = docs.words(site, page, text)
    assert 'href="settings.html#a"' in made and 'href="../src/regard/errors.py.html"' in made and '<h1 id="a">' in made
    assert 'src="pictures/shapes.png"' in made and (tmp_path / "docs" / "pictures" / "shapes.png").exists()
    assert "<p><figure" not in made and '<div class="scroll"><table>' in made
    assert ROOT / "src" / "regard" / "errors.py" in site.pages
    for gone in ("nowhere.md", "../../outside.md"):
        with pytest.raises(docs.Failed, match=r"transformer\.md: a link to"):
            docs.words(site, page, f"[a]({gone})")


def test_only_a_site_is_cleared(docs, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(docs.Failed, match="something else"):
        docs.clear(tmp_path)
    assert (tmp_path / "mine.txt").exists()
