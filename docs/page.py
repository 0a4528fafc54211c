"""The README's pictures of the page, of runs that are served for them:

python docs/page.py runs/demo runs/shapes-clip
"""

import io
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from regard.server.connections import bind_socket, create_server, socket_url
from regard.server.models import load_runs
from regard.server.settings import ServerSettings
from regard.worlds import shapes

PICTURES = Path(__file__).parent / "pictures"
COLOURS = 96
HIGHEST = 1430  # what is below is to be scrolled to


def translated(page: Page) -> None:
    page.get_by_role("button", name="Translate", exact=True).click()
    page.locator(".target .word", has_text="sie").click()
    page.get_by_text("the word 'sie'").wait_for()
    page.mouse.move(0, 0)


def matched(page: Page) -> None:
    drawn = io.BytesIO()
    two = shapes.generate(50, seed=3, split="test", shapes=(2, 2))
    found = next(one for one in two if len({shape.kind for shape in one.scene.shapes}) == 2)
    Image.fromarray(found.pixels()).resize((256, 256), Image.Resampling.NEAREST).save(drawn, "PNG")
    first, second = (" ".join(("a", *shape.combination)) for shape in found.scene.shapes)
    page.get_by_label("Labels, one a line").fill(f"{first}\n{second}\na purple star")
    page.locator("input[type=file]").set_input_files({"name": "shapes.png", "mimeType": "image/png", "buffer": drawn.getvalue()})
    page.locator(".trust table").wait_for()
    page.get_by_label("Labels, one a line").blur()


def take(browser: Any, url: str, name: str, at: str, width: int, theme: Any, act: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.goto(f"{url}/#{at}")
    act(page)
    page.wait_for_timeout(300)
    whole = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    above = whole.crop((0, 0, whole.width, min(whole.height, HIGHEST)))
    above.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / name, optimize=True)
    print(PICTURES / name, f"{(PICTURES / name).stat().st_size:,} bytes")
    page.close()


def main(translator: str, matcher: str) -> None:
    settings = ServerSettings(port=0)
    taken = bind_socket(settings)
    server = create_server(load_runs([f"demo={translator}", f"shapes-clip={matcher}"], "cpu"), settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take(browser, socket_url(taken), "page.png", "demo/translate", 1200, "light", translated)
        take(browser, socket_url(taken), "page-phone.png", "shapes-clip/match", 390, "dark", matched)
        browser.close()
    server.should_exit = True
    thread.join(15)


if __name__ == "__main__":
    main(*sys.argv[1:])
