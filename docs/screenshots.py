"""Take the screenshots of the web page in docs/figures: `python docs/screenshots.py runs/demo [runs/shapes-clip]`.

tests/system/test_screenshots.py takes them too, with `take_all`, and checks what they show.
"""

import io
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from regard.server.connections import bind_socket, create_server, socket_url
from regard.server.models import load_runs
from regard.server.settings import ServerSettings
from regard.worlds import shapes

Theme = Literal["light", "dark"]
FIGURES = Path(__file__).parent / "figures"
COLOURS = 96
MAX_HEIGHT = 1430
PATIENCE = 90_000
"""Milliseconds that a view may take to answer on a busy machine."""
SENTENCE = "The dog waited in the hut, although it had burned down."
COMPARED = "The goat waits behind the car, although it is tired."
TEXT = f"text={SENTENCE.replace(' ', '+')}"
WIDTHS = {1440: "wide", 1024: "medium", 390: "phone"}
THEMES: tuple[Theme, ...] = ("light", "dark")
ANSWERED = ".form:not([aria-busy]):not(.stale)"
HALF = "half-trained"
"""The second model of the comparison: the same run at its first checkpoint."""


class Screenshot(NamedTuple):
    """An image of the page, and how wide its content was."""

    path: Path
    width: int
    content_width: int


def wait_until_drawn(page: Page) -> None:
    page.locator(".result > *").first.wait_for()
    page.locator(ANSWERED).wait_for()


def translate_view(page: Page) -> None:
    wait_until_drawn(page)
    page.locator(".target .word", has_text="sie").first.click()
    page.locator(".faithfulness table").wait_for()


def whatif_view(page: Page) -> None:
    wait_until_drawn(page)
    page.get_by_text(re.compile("answer, probability")).first.wait_for()
    page.locator(".switches").wait_for()


def match_view(page: Page) -> None:
    png = io.BytesIO()
    images = shapes.generate(50, seed=3, split="test", shapes=(2, 2))
    image = next(image for image in images if len({shape.kind for shape in image.scene.shapes}) == 2)
    Image.fromarray(image.pixels()).resize((256, 256), Image.Resampling.NEAREST).save(png, "PNG")
    first, second = (" ".join(("a", *shape.combination)) for shape in image.scene.shapes)
    labels = page.locator("textarea").first
    labels.fill(f"{first}\n{second}\na purple star")
    page.locator("input[type=file]").set_input_files({"name": "shapes.png", "mimeType": "image/png", "buffer": png.getvalue()})
    page.locator(".faithfulness table").wait_for()
    labels.blur()


def flow_view(page: Page) -> None:
    page.locator(".flow-bars").wait_for()
    page.wait_for_timeout(1500)


def lens_view(page: Page) -> None:
    page.locator(".lens-detail p").wait_for()


def search_view(page: Page) -> None:
    page.locator(".hits li").first.wait_for()
    page.locator(ANSWERED).wait_for()


VIEWS: dict[str, tuple[str, Callable[[Page], None]]] = {
    "page": (f"#demo/translate?{TEXT}", translate_view),
    "heads-off": (f"#demo/whatif?{TEXT}&off=cross.2.1,cross.2.2,cross.2.3", whatif_view),
    "edited-word": (f"#demo/whatif?{TEXT}&changed={SENTENCE.replace('hut', 'house').replace(' ', '+')}", whatif_view),
    "comparison": (f"#demo/whatif?text={COMPARED.replace(' ', '+')}&with={HALF}", whatif_view),
    "lens": (f"#demo/lens?{TEXT}&layer=1&token=8", lens_view),
    "flow": (f"#demo/flow?{TEXT}&stage=53&head=3&token=9", flow_view),
    "search": ("#demo/search?kind=encoder&layer=2&head=2&word=it&number=24", search_view),
}
"""What is shown at every width, light and dark, by the name of its file."""


def take(browser: Browser, url: str, name: str, act: Callable[[Page], None], folder: Path) -> Iterator[Screenshot]:
    """Open a view once, act on it, and save its upper part at every width in both themes, as NAME-WIDTH-THEME.png."""
    page = browser.new_page(viewport={"width": max(WIDTHS), "height": 900}, color_scheme="light")
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    act(page)
    for width, size in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 900})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            page.mouse.move(0, 0)
            page.wait_for_timeout(400)
            yield Screenshot(save_screenshot(page, folder / f"{name}-{size}-{theme}.png"), width, content_width(page))
    page.close()


def content_width(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def save_screenshot(page: Page, path: Path) -> Path:
    """Save the upper part of a page as a PNG of few colours."""
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, MAX_HEIGHT)))
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def take_all(browser: Browser, url: str, folder: Path) -> Iterator[Screenshot]:
    """Save every view of a server with the models "demo" and HALF."""
    for name, (address, act) in VIEWS.items():
        yield from take(browser, f"{url}/{address}", name, act, folder)


def copy_half_trained(run: Path, folder: Path) -> Path:
    """Copy a run with the weights of its first checkpoint."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copy(min((run / "checkpoints").iterdir()) / "model.safetensors", folder / "model.safetensors")
    return folder


def main(translator: str, clip: str | None = None) -> None:
    settings = ServerSettings(port=0)
    socket = bind_socket(settings)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        half = copy_half_trained(Path(translator), Path(folder) / HALF)
        runs = [f"demo={translator}", f"{HALF}={half}", *([f"shapes-clip={clip}"] if clip else [])]
        server = create_server(load_runs(runs, "cpu"), settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for shot in take_all(browser, socket_url(socket), FIGURES):
            print(shot.path, f"{shot.path.stat().st_size:,} bytes")
        if clip:
            page = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme="dark")
            page.goto(f"{socket_url(socket)}/#shapes-clip/match")
            match_view(page)
            page.wait_for_timeout(400)
            save_screenshot(page, FIGURES / "match-phone-dark.png")
        browser.close()
        server.should_exit = True
        thread.join(15)


if __name__ == "__main__":
    main(*sys.argv[1:])
