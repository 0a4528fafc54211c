"""The tour: its pages are parsed and run as notebooks, print the correct numbers of the lecture, and become pages of the site."""

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


def load_from_docs(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"docs_{name}"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def percent():
    return load_from_docs("percent")


@pytest.fixture(scope="module")
def hooks():
    pytest.importorskip("mkdocs")
    before = list(sys.path)
    yield load_from_docs("hooks")
    sys.path[:] = before


@pytest.fixture
def run_page(percent, tmp_path, monkeypatch):
    """Return a function that runs a page and returns the outputs of its code cells."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tour"))
    import helpers

    monkeypatch.setattr(helpers, "FOLDER", tmp_path)
    return lambda name: [out for _, out in percent.run_page(ROOT / "docs" / "tour" / name, name) if out is not None]


LINE = st.text("ab=1+ ()#", max_size=12).filter(lambda line: "# %%" not in line)


@given(st.lists(st.tuples(st.booleans(), st.lists(LINE, min_size=1, max_size=4)), max_size=5))
def test_parse_cells_keeps_every_line_at_its_number(percent, written):
    """Markers and empty cells disappear; every other line stays."""
    lines = []
    for is_markdown, inside in written:
        lines += ["# %% [markdown]", *(f"# {line}" for line in inside)] if is_markdown else ["# %%", *inside]
    cells = percent.parse_cells("\n".join(lines))
    expected = [(is_markdown, "\n".join(inside).strip()) for is_markdown, inside in written]
    found = [(cell.is_markdown, cell.text.strip()) for cell in cells if cell.text.strip()]
    assert found == [cell for cell in expected if cell[1]]
    assert all(lines[cell.line - 1].removeprefix("# ").strip() == cell.text.split("\n")[0].strip() for cell in cells)


def test_code_in_a_markdown_cell_is_refused(percent):
    with pytest.raises(percent.PageError, match=r"a\.py:3: every line"):
        percent.parse_cells("# %% [markdown]\n# a\nx = 1\n", "a.py")


def test_cells_share_a_namespace_and_pages_do_not(percent, tmp_path):
    path = tmp_path / "a.py"
    path.write_text('# %%\nx = 2\nprint("printed")\n# %% [markdown]\n# words\n# %%\nx * 21\n')
    first, markdown, last = (output for _, output in percent.run_page(path, "a.py"))
    assert (first.stdout, first.value, markdown, last.value) == ("printed\n", None, None, 42)
    path.write_text("# %%\nx\n")
    with pytest.raises(percent.PageError, match="NameError"):
        list(percent.run_page(path, "a.py"))


@pytest.mark.parametrize("code", ["1 / 0", "import sys\nsys.exit(0)", "def"])
def test_a_failing_cell_is_named_with_its_page_and_line(percent, tmp_path, code):
    path = tmp_path / "a.py"
    path.write_text(f"# %% [markdown]\n# # a\n\n# %%\n{code}\n")
    with pytest.raises(percent.PageError, match=r"docs/a\.py, cell 2 \(line 5\): (ZeroDivision|SystemExit|Syntax)"):
        list(percent.run_page(path, "docs/a.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tour_page_has_a_title_and_code_and_is_linked(percent, path):
    cells = percent.parse_cells(path.read_text(encoding="utf-8"), path.name)
    assert cells[0].is_markdown and cells[0].text.startswith("# ")
    compile(path.read_text(encoding="utf-8"), path.name, "exec")
    assert not all(cell.is_markdown for cell in cells)
    assert f"(tour/{path.name})" in (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    assert f"- tour/{path.stem}.md\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_scaling_page_prints_the_weights_and_gradients_of_the_lecture(run_page):
    printed = "".join(output.stdout for output in run_page("01-scores.py"))
    assert "scores 112, 96  weights 1.00, 0.00" in printed and "scores 14, 12  weights 0.88, 0.12" in printed
    found = [float(number) for number in re.findall(r"own score ([-+\d.e]+),", printed)]
    expected = [weight * (1 - weight) for weight in (1 / (1 + math.exp(-gap)) for gap in (16, 2))]
    assert found == pytest.approx(expected, rel=0.01) and found[0] < 1e-6 < 0.1 < found[1]


def test_masking_page_prints_the_softmax_and_names_the_misprint(run_page):
    """The true softmax of each row; the numbers of the slide deck only where they are called a misprint."""
    printed = "".join(output.stdout for output in run_page("02-masks.py"))
    all_scores = [[0.11], [0.19, 0.53], [0.81, 0.21, 0.05], [0.51, 0.43, 0.12, 0.03]]
    rows = [[float(number) for number in re.findall(r"[\d.]+", line)] for line in printed.splitlines()[:4]]
    for row, scores in zip(rows, all_scores):
        softmax = torch.tensor(scores).softmax(0).tolist()
        assert row == pytest.approx([*softmax, *[0.0] * (4 - len(softmax))], abs=0.0051)
    assert rows[1][:2] == [0.42, 0.58] and printed.count("0.48, 0.52") == 1
    assert "of a quarter" in next(line for line in printed.splitlines() if "0.48" in line)
    before, after = zip(*re.findall(r"before tensor\((.*?)\), masked after tensor\((.*?)\)", printed))
    assert len(before) == 2 and before[0] == before[1] and after[0] != after[1]


def test_norms_page_layer_norm_is_independent_of_the_batch_and_batch_norm_is_not(run_page):
    printed = "".join(output.stdout for output in run_page("05-norms.py"))
    within = {
        name: (float(word), float(feature))
        for name, word, feature in re.findall(
            r"(\w+) norm: the mean of a word is within ([\d.]+) of 0, the mean of a feature within ([\d.]+)", printed
        )
    }
    assert within["layer"][0] == 0 < within["layer"][1] and within["batch"][1] == 0 < within["batch"][0]
    change = {
        name: float(number) for name, number in re.findall(r"(\w+) norm: the first sentence changes by at most ([\d.]+)", printed)
    }
    assert change["layer"] == 0 < change["batch"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_notebooks_of_the_tour_are_current(percent, path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    written = path.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert written == load_from_docs("notebooks").notebook(path), "stale: run python docs/notebooks.py"
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.reads(written, as_version=4))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_have_exercises_with_checked_answers_and_never_shell_out(percent, path):
    text = path.read_text(encoding="utf-8")
    answers = text.split("# ## Exercises")[1]
    assert "# 1. " in answers and "assert " in answers and not re.search(r"subprocess|os\.system|^!", text, re.M)


def test_patches_page_projects_as_a_convolution_does(run_page):
    printed = "".join(output.stdout for output in run_page("09-patches.py"))
    assert "16 tokens of 192 numbers" in printed and float(re.search(r"differ by (\S+)", printed)[1]) < 1e-5
    assert "patches of 16:  197 tokens" in printed


def test_positions_page_answers_its_exercise(run_page):
    assert "1. a rotation" in "".join(output.stdout for output in run_page("04-positions.py"))


def test_a_figure_as_the_value_of_a_cell_becomes_an_image(run_page, hooks):
    outputs = [output for output in run_page("05-norms.py") if output.value is not None]
    assert len(outputs) == 1 and outputs[0].value._repr_svg_().count("<svg") == 1 and outputs[0].value._repr_png_() is None
    figures = {}
    assert 'src="05-norms-4.svg"' in hooks.show_value(outputs[0], "05-norms-4", figures)
    assert b"<svg" in figures["tour/05-norms-4.svg"]


def test_links_become_links_to_pages_figures_and_source(hooks):
    path, sources = ROOT / "docs" / "transformer.md", {}
    text = (
        "[s](settings.md#a) [`c`](../src/regard/errors.py) [r](../README.md#b) [t](tour/01-scores.py)\n"
        "```\n[c](nowhere.md)\n```\n[e](https://a.org) [d](../src/regard/interop/families) ![f](figures/shapes.png)"
    )
    assert hooks.rewrite_links(text, path, "transformer.md", sources) == (
        "[s](settings.md#a) [`c`](source/src/regard/errors.py.md) [r](index.md#b) [t](tour/01-scores.md)\n"
        "```\n[c](nowhere.md)\n```\n[e](https://a.org) [d](source/src/regard/interop/families.md) ![f](figures/shapes.png)"
    )
    assert "```py\n" in sources["source/src/regard/errors.py.md"]
    assert "[bert.py](families/bert.py.md)" in sources["source/src/regard/interop/families.md"]
    assert "source/src/regard/interop/families/bert.py.md" in sources


@pytest.mark.parametrize("target", ["nowhere.md", "../../outside.md"])
def test_a_broken_link_is_refused(hooks, target):
    with pytest.raises(hooks.PageError, match=r"transformer\.md: the link to"):
        hooks.rewrite_links(f"[a]({target})", ROOT / "docs" / "transformer.md", "transformer.md", {})
