"""Every kind of HTML figure in a real browser, with 5 and 2,000 tokens: no errors, no requests, no HTML injection."""

import numpy as np
import pytest

from regard.show.attention import show_maps
from regard.show.figures.attention_maps import tile_attention
from regard.show.figures.beam_tree import ENDED, KEPT, PRUNED, BeamNode, beam_tree_figure
from regard.show.figures.curves import erasure_curves
from regard.show.figures.decoding_steps import generation_page
from regard.show.figures.figure_files import to_svg
from regard.show.figures.head_views import entropy_figure, head_view, model_view
from regard.show.figures.html_pages import PAGE_VIEWS, attention_page
from regard.show.figures.matrix import attention_matrix
from regard.show.figures.neuron_view import MAX_QUERIES, neuron_figure, neuron_page
from regard.show.figures.teaching import position_figure
from regard.show.inline import InlineFigure
from regard.show.selection import ViewSelection

pytestmark = pytest.mark.system
HTML_INJECTION = "<img src=x onerror=alert(1)>"
TRUNCATED = "<img src=x o…r=alert(1)>"


@pytest.fixture(scope="module", params=[5, 2000])
def group(request):
    """Return two kinds of attention, each with 2 layers of 3 causal heads."""
    number = request.param
    positions = np.arange(number)

    def layers():
        for layer in range(2):
            reach = 1 + 20 * np.arange(3)[:, None, None] * (layer + 1)
            near = np.exp(-np.abs(positions[:, None] - positions) / reach) * np.tri(number)
            yield near / near.sum(-1, keepdims=True)

    words = [HTML_INJECTION, *(f"w{i}" for i in range(1, number))]
    return [
        tile_attention(name, layers(), words, words, names=["1", "2"])
        for name in ("self-attention of the encoder", "cross-attention")
    ]


def check_page(window, path, interact):
    """Open a page and interact with it; there must be no errors, no images and no other requests."""
    with window(1000) as (page, errors, urls):
        page.goto(path.as_uri())
        interact(page)
        assert page.locator("img").count() == 0
    assert not errors and urls == [path.as_uri()]


def check_without_scripts(browser, path, condition):
    """Check a page in a browser that runs no scripts."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert condition(page)
    context.close()


@pytest.mark.parametrize("view", PAGE_VIEWS)
def test_interactive_attention_pages(window, group, tmp_path, view):
    path = tmp_path / "a.html"
    path.write_text(
        attention_page(group, view=view, token=0 if view == "token" else None, title=HTML_INJECTION), encoding="utf-8"
    )
    assert path.stat().st_size < 3_000_000

    def interact(page):
        assert page.locator("h1").inner_text() == HTML_INJECTION and page.locator("#stage canvas").count() >= 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 1000
        if view == "heads":
            first = page.locator(".lines .words div").first
            assert TRUNCATED[:5] in first.inner_text()
            first.hover()
            assert "attends to" in page.locator("#status").inner_text()
            first.click()
        elif view == "model":
            page.locator("#stage canvas").nth(1).click()
            assert page.locator("button.head[aria-pressed=true]").all_inner_texts() == ["2"]
        else:
            page.locator("#stage canvas").hover(position={"x": 2, "y": 2})
            assert "→" in page.locator("#status").inner_text()
        for name in PAGE_VIEWS.values():  # every other view, every layer and kind, with one head fewer
            page.get_by_role("button", name=name, exact=True).click()
            for select in page.locator("#choose select").all():
                select.select_option(index=1)
        page.locator("button.head").first.click()
        assert page.locator("button.head[aria-pressed=false]").count() == 1

    check_page(window, path, interact)


@pytest.mark.parametrize("view", PAGE_VIEWS)
def test_attention_pages_have_numbers_beside_their_colours_and_a_dark_mode(window, group, tmp_path, view):
    """The legend ends just above the largest weight, or at 1; in the dark theme the same drawing begins at a dark colour."""
    path = tmp_path / "a.html"
    path.write_text(attention_page(group, view=view, token=1 if view == "token" else None), encoding="utf-8")
    darkest = "[...document.querySelectorAll('#stage, html')].map(one => getComputedStyle(one).backgroundColor)"

    def interact(page):
        end = float(page.locator("#scale .scale span").nth(1).inner_text())
        shown = group[0].weights if view == "model" else group[0].weights[0]
        assert shown.mean(0).max() / 3 <= end <= 1
        page.get_by_label("scale to 1").check()
        assert page.locator("#scale .scale span").nth(1).inner_text() == "1"
        before = page.evaluate(darkest), page.locator("#stage canvas").first.screenshot()
        page.get_by_role("button", name="dark colours").click()
        after = page.evaluate(darkest), page.locator("#stage canvas").first.screenshot()
        assert before[0] != after[0] and before[1] != after[1]
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"

    check_page(window, path, interact)


@pytest.mark.parametrize("kind", ["matrix", "lines", "model", "entropy", "tree", "positions", "curves"])
def test_pages_with_a_static_figure(window, group, tmp_path, kind):
    found = group[0]
    nodes = [
        BeamNode(-1, 1, HTML_INJECTION, -0.1, KEPT, best=True),
        BeamNode(-1, 1, "b", -1.0, PRUNED),
        BeamNode(0, 2, "c", -0.2, ENDED, -0.1, best=True),
    ]
    points = [{"top": f"{percent}%", "percent": percent, "score": 0.1, "low": 0.0, "high": 0.2} for percent in (1, 50)]
    figure = {
        "matrix": lambda: attention_matrix(found.weights[0, 0], found.keys, found.queries),
        "lines": lambda: head_view(found.weights[0], found.queries, found.keys, found.heads),
        "model": lambda: model_view(found),
        "entropy": lambda: entropy_figure(found),
        "tree": lambda: beam_tree_figure(nodes),
        "curves": lambda: erasure_curves({"without": dict.fromkeys(found.keys[:9], points)}),
        "positions": lambda: position_figure(np.sin(np.outer(np.arange(50), 1 / np.arange(1, 129)))),
    }[kind]()
    InlineFigure(HTML_INJECTION, lambda: figure).save(tmp_path / "a.html")

    def interact(page):
        assert page.locator("svg text").count() >= 3
        if kind in ("matrix", "lines", "tree", "curves"):
            assert any("<img" in text for text in page.locator("svg text").all_text_contents())

    check_page(window, tmp_path / "a.html", interact)


@pytest.mark.parametrize("number", [5, 2000])
def test_neuron_page_follows_the_pointer(browser, window, make_neuron_view, tmp_path, number):
    path, found = tmp_path / "a.html", make_neuron_view(min(number, MAX_QUERIES), number, 64)
    path.write_text(neuron_page(found, 1, to_svg(neuron_figure(found, 1)), title=HTML_INJECTION), encoding="utf-8")
    assert path.stat().st_size < 3_000_000

    def interact(page):
        assert page.locator("h1").inner_text() == HTML_INJECTION and page.evaluate("document.documentElement.scrollWidth") <= 1000
        assert page.locator("#queries [aria-pressed=true]").inner_text() == found.queries[1].word
        assert page.locator(".sums canvas").count() == 1 + 2 * len(found.queries[1].keys)
        first = page.locator("#queries button").first
        first.hover()
        assert TRUNCATED[:5] in page.locator(".sums .query").inner_text()
        page.locator("h1").hover()
        assert TRUNCATED[:5] not in page.locator(".sums .query").inner_text()  # hovered, not pinned
        first.click()
        page.locator("h1").hover()
        assert TRUNCATED[:5] in page.locator(".sums .query").inner_text()
        page.locator(".sums canvas").nth(2).hover(position={"x": 3, "y": 3})
        assert "component 1" in page.locator("#status").inner_text()

    check_page(window, path, interact)
    check_without_scripts(browser, path, lambda page: page.locator("svg text").first.is_visible())


@pytest.mark.parametrize("number", [5, 2000])
@pytest.mark.parametrize("own", [None, 1])
def test_generation_page_steps_through_the_text(browser, window, make_trace, tmp_path, number, own):
    path = tmp_path / "a.html"
    path.write_text(generation_page(make_trace(number, number, own), title=HTML_INJECTION), encoding="utf-8")

    def interact(page):
        now, step = page.locator("#stage .now"), lambda: page.locator("#choose span").first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 1000
        assert now.inner_text().startswith(TRUNCATED[:5] if own is None else "$x^2$") and step() == f"step 1 of {number}"
        page.keyboard.press("ArrowRight")
        page.get_by_role("button", name="▶", exact=True).click()
        assert step() == f"step 3 of {number}" and page.locator("tr[aria-current]").inner_text().startswith("3")
        page.keyboard.press("ArrowLeft")
        assert step() == f"step 2 of {number}" and "$x^2$" in page.locator("#stage .alternatives").inner_text()
        page.keyboard.press("End")
        assert page.get_by_role("button", name="▶", exact=True).is_disabled()
        page.locator(".steps tbody tr").nth(3).click()
        assert step() == f"step 4 of {number}" and page.locator("#stage [title]").count() >= 1

    check_page(window, path, interact)
    check_without_scripts(
        browser,
        path,
        lambda page: (
            page.locator(".steps tbody tr").count() == number
            and page.locator(".steps tbody tr").last.is_visible()
            and page.locator("#stage").is_hidden()
            and "<img onerror> 0.20" in page.locator(".steps tbody tr").first.inner_text()
        ),
    )


def test_two_figures_of_a_notebook_do_not_know_each_other(window, group, tmp_path):
    """Each is a frame as tall as what it shows; a click in one changes nothing in the other."""
    figures = [show_maps(group, ViewSelection(view), title=HTML_INJECTION) for view in ("heads", "heads", "entropy")]
    cells = "".join(f"<div>{figure._repr_mimebundle_()['text/html']}</div>" for figure in figures)
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{cells}</body>", encoding="utf-8")
    with window(1000) as (page, errors, urls):
        page.goto(path.as_uri())
        first, second = (page.frame_locator("iframe").nth(number) for number in (0, 1))
        first.get_by_role("button", name="matrix").click()
        assert first.locator(".matrix canvas").count() == 1 and second.locator(".lines canvas").count() == 1
        page.wait_for_function("document.querySelector('iframe').style.height !== '460px'")
        assert page.locator("img").count() == 1 and page.locator("[id]").count() == 0
    assert not errors and [url for url in urls if not url.startswith(("data:", "about:"))] == [path.as_uri()]
