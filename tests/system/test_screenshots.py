"""The screenshots of the docs, taken of the demo by the code that takes those of docs/figures: every view at every width, in
both themes, drawn, within its width, and small."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.run.load import load

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
MAX_BYTES = 150_000
PAPER = {"light": (252, 252, 250), "dark": (20, 24, 31)}
"""The backgrounds of show/web/theme.css."""


@pytest.fixture(scope="module")
def screenshots():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import screenshots

        yield screenshots
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.fixture(scope="module")
def taken(screenshots, demo, listening, browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("screenshots")
    half = screenshots.copy_half_trained(demo.folder, folder / screenshots.HALF)
    runs = {"demo": load(demo.folder, device="cpu"), screenshots.HALF: load(half, device="cpu")}
    with listening(runs) as server:
        return {shot.path.stem: shot for shot in screenshots.take_all(browser, server.url, folder)}


def drawn_share(path, theme):
    """Return the share of pixels that differ clearly from the background."""
    image = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return float((np.abs(image - PAPER[theme]).max(-1) > 12).mean())


def test_every_view_is_taken_at_every_width_in_both_themes(screenshots, taken):
    names = {f"{view}-{size}-{theme}" for view in screenshots.VIEWS for size in screenshots.WIDTHS.values() for theme in PAPER}
    assert set(taken) == names
    committed = {path.stem for path in screenshots.FIGURES.glob("*.png")}
    assert names <= committed, "python docs/screenshots.py RUN"


def test_no_view_is_blank_or_wider_than_the_window(taken):
    for name, shot in taken.items():
        image, theme = Image.open(shot.path), name.rpartition("-")[2]
        assert image.width == shot.width and shot.content_width <= shot.width, name
        assert image.height >= 600, name
        assert 0.04 < drawn_share(shot.path, theme) < 0.7, name
        assert len(image.convert("RGB").getcolors(1_000_000)) > 30, name


def test_themes_differ(taken):
    for name, shot in taken.items():
        if name.endswith("-light"):
            other = taken[name.removesuffix("light") + "dark"]
            light, dark = (np.asarray(Image.open(one.path).convert("L")).mean() for one in (shot, other))
            assert light > 200 > 60 > dark, name


def test_committed_screenshots_are_small_and_of_their_width(screenshots):
    widths = {size: width for width, size in screenshots.WIDTHS.items()}
    for view in screenshots.VIEWS:
        for path in screenshots.FIGURES.glob(f"{view}-*-*.png"):
            assert path.stat().st_size < MAX_BYTES, path.name
            assert Image.open(path).width == widths[path.stem.split("-")[-2]], path.name
