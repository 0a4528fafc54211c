"""Take the screenshots of the web page in docs/figures: `python docs/screenshots.py runs/demo [runs/shapes-clip]`."""

import io
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from regard.server.connections import bind_socket, create_server, socket_url
from regard.server.models import load_runs
from regard.server.settings import ServerSettings
from regard.worlds import shapes

FIGURES = Path(__file__).parent / "figures"
COLOURS = 96
SENTENCE = "The+goat+finds+the+cake+under+the+sofa+because+it+is+baked."
MAX_HEIGHT = 1430


SENTENCE = "The dog waited in the hut, although it had burned down."
TEXT = f"text={SENTENCE.replace(' ', '+')}"
WIDTHS = {1440: "wide", 1024: "medium", 390: "phone"}
ANSWERED = ".form:not([aria-busy]):not(.stale)"


def wait_until_drawn(page: Page) -> None:
    page.locator(".result > *").first.wait_for()
    page.locator(ANSWERED).wait_for()
    page.mouse.move(0, 0)


def translate_view(page: Page) -> None:
    wait_until_drawn(page)
    page.locator(".target .word", has_text="sie").first.click()
    page.locator(".faithfulness table").wait_for()
    page.mouse.move(0, 0)


def heads_off_view(page: Page) -> None:
    wait_until_drawn(page)
    page.get_by_text(re.compile("answer, probability")).first.wait_for()


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
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)


def lens_view(page: Page) -> None:
    page.locator(".lens-detail p").wait_for()
    page.mouse.move(0, 0)


def take(browser: Browser, url: str, name: str, width: int, theme: Literal["light", "dark"], act: Callable[[Page], None]) -> None:
    """Open a view, act on it, and save the upper part of the page."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.goto(url)
    act(page)
    page.wait_for_timeout(300)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, MAX_HEIGHT)))
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(FIGURES / name, optimize=True)
    print(FIGURES / name, f"{(FIGURES / name).stat().st_size:,} bytes")
    page.close()


VIEWS = {
    "page": (f"#demo/translate?{TEXT}", translate_view),
    "heads-off": (f"#demo/whatif?{TEXT}&off=cross.2.1,cross.2.2,cross.2.3", heads_off_view),
    "edited-word": (f"#demo/whatif?{TEXT}&changed={SENTENCE.replace('hut', 'house').replace(' ', '+')}", heads_off_view),
}
"""What is shown at every width, light and dark, by the name of its file."""


def take_all(browser: Browser, url: str) -> None:
    """Save every view at every width in both themes, as NAME-WIDTH-THEME.png."""
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for name, (address, act) in VIEWS.items():
        for width, size in WIDTHS.items():
            for theme in themes:
                take(browser, f"{url}/{address}", f"{name}-{size}-{theme}.png", width, theme, act)


def main(translator: str, clip: str | None = None) -> None:
    settings = ServerSettings(port=0)
    socket = bind_socket(settings)
    runs = [f"demo={translator}", *([f"shapes-clip={clip}"] if clip else [])]
    server = create_server(load_runs(runs, "cpu"), settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take_all(browser, socket_url(socket))
        if clip:
            take(browser, f"{socket_url(socket)}/#shapes-clip/match", "page-phone.png", 390, "dark", match_view)
        browser.close()
    server.should_exit = True
    thread.join(15)


if __name__ == "__main__":
    main(*sys.argv[1:])
