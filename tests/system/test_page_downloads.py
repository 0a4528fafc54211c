"""Downloads are what is on the screen: the layer, head and token that are shown, in the theme of the page, of every view."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.system
TEXT = "the goat sees the cake"
STATE = TEXT.replace(" ", "+")
LONG = 60_000
VIEWS = {
    "translate": ".result canvas.map",
    "attention": ".lines canvas",
    "whatif": ".switches canvas",
    "lens": ".lens-detail p",
    "flow": ".flow-main h2",
    "search": ".hits",
}


@pytest.fixture(scope="module")
def served(listening, tiny_run):
    with listening({"en-de": tiny_run}) as server:
        yield server.url


@pytest.fixture
def opened(window, served):
    """Return a function that opens a view in a theme; at the end there were no errors."""
    with window(1200) as (page, errors, _):

        def go(view, state="", theme="light"):
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            page.goto("about:blank")
            key = "lines" if view == "search" else "text"
            page.goto(f"{served}/#en-de/{view}?{key}={STATE}{state}")
            page.locator(VIEWS[view]).first.wait_for(timeout=LONG)
            page.locator(".form:not([aria-busy]):not(.stale)").wait_for(timeout=LONG)
            page.wait_for_timeout(400)
            return page

        yield go
        assert errors == []


def download(page, label="PNG"):
    with page.expect_download() as found:
        page.get_by_role("button", name=f"download {label}", exact=True).first.click()
    return found.value.suggested_filename, Path(found.value.path()).read_bytes()


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("view", VIEWS)
def test_download_of_a_view_is_drawn_in_the_theme_of_the_page(opened, view):
    for theme, paper in {"light": (252, 252, 250), "dark": (20, 24, 31)}.items():
        page = opened(view, theme=theme)
        name, data = download(page)
        image = pixels(data)
        assert name.startswith("en-de-") and name.endswith(".png") and min(image.shape[:2]) > 100
        assert tuple(image[2, 2]) == paper
        assert 0.02 < float((np.abs(image - paper).max(-1) > 12).mean()) < 0.9, "neither blank nor full"
    _, svg = download(page, "SVG")
    assert svg.startswith(b"<?xml") and b"<foreignObject" in svg and b"<script" not in svg


def test_download_looks_like_the_screen(opened):
    """The words, bars and matrices of a download are where a screenshot of the same nodes has them."""
    page = opened("lens")
    shown = pixels(page.locator(".result .lens").screenshot())
    found = pixels(download(page)[1])[32:-32:2, 32:-32:2]  # at twice the size, with a margin of 16
    height, width = (min(a, b) for a, b in zip(shown.shape[:2], found.shape[:2]))
    assert abs(shown.shape[0] - found.shape[0]) < 8 and abs(shown.shape[1] - found.shape[1]) < 8
    different = np.abs(shown[:height, :width] - found[:height, :width]).max(-1) > 60
    assert different.mean() < 0.03


def test_another_head_and_another_token_give_another_download(opened):
    files = {}
    for state in ("&kind=encoder&layer=1&head=1", "&kind=encoder&layer=2&head=2", "&kind=encoder&layer=2&head=2&token=2"):
        name, data = download(opened("attention", state))
        assert name == f"en-de-layer-{state[20]}-head-{state[27]}.png"
        files[state] = data
    assert len(set(files.values())) == 3


def test_download_of_a_stage_of_the_flow_names_it(opened):
    page = opened("flow", "&stage=6&head=2&token=3")
    title = page.locator(".flow-main h2").inner_text()
    name, svg = download(page, "SVG")
    assert name == "en-de-flow-6.svg" and title in svg.decode() and "attends to" in svg.decode()
    assert "first stage" not in svg.decode(), "the controls are not in it"


def test_what_if_download_has_both_answers_and_the_heads_that_are_off(opened):
    page = opened("whatif", "&off=cross.1.1")
    page.get_by_text("1 of 4 heads off").wait_for()
    svg = download(page, "SVG")[1].decode()
    assert svg.count("probability of this translation") == 2 and "1 of 4 heads off" in svg and "::after" in svg
