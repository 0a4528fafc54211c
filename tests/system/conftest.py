"""A real browser, where there is one; what is trained once for all: the demonstration, the server's tiny runs."""

import importlib.util
import resource
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def beside(name):
    """A module of the server's tests."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "server" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


SERVER = beside("conftest")
runs, listening, gated = SERVER.runs, SERVER.listening, SERVER.gated


class Demo(NamedTuple):
    """What it left and said; how long it took, on the clock and of a CPU."""

    folder: Path
    said: str
    seconds: float
    cpu_seconds: float


@pytest.fixture(scope="session")
def cpu_seconds():
    """Of the children that have ended."""

    def used():
        found = resource.getrusage(resource.RUSAGE_CHILDREN)
        return found.ru_utime + found.ru_stime

    return used


@pytest.fixture(scope="session")
def demo(tmp_path_factory, cpu_seconds):
    """As a newcomer types it."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    begun, before = time.perf_counter(), cpu_seconds()
    done = subprocess.run([sys.executable, "-m", "regard", "demo", "--out", str(folder)], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return Demo(folder, done.stdout, time.perf_counter() - begun, cpu_seconds() - before)


@pytest.fixture(scope="session")
def stubs():
    return beside("page_stub")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def window(browser):
    """Opens one: its page, what that complains of, and what it asks for."""

    @contextmanager
    def open_(width, height=800, **options):
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        wrong, asked = [], []
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        try:
            yield page, wrong, asked
        finally:
            page.close()

    return open_
