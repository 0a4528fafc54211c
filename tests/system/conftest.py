"""Shared fixtures: a real browser, where there is one; the demo run; the server's tiny runs."""

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


def import_from_server_tests(name):
    """Import a module of tests/server."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "server" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


server_fixtures = import_from_server_tests("conftest")
runs, listening, gated = server_fixtures.runs, server_fixtures.listening, server_fixtures.gated


class DemoResult(NamedTuple):
    """The run folder and output of `regard demo`, and the time it took."""

    folder: Path
    output: str
    seconds: float
    cpu_seconds: float


@pytest.fixture(scope="session")
def cpu_seconds():
    """Return a function that gives the CPU seconds of all finished child processes."""

    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    return used


@pytest.fixture(scope="session")
def demo(tmp_path_factory, cpu_seconds):
    """Run `regard demo` as a new user would."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    start, before = time.perf_counter(), cpu_seconds()
    done = subprocess.run([sys.executable, "-m", "regard", "demo", "--out", str(folder)], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return DemoResult(folder, done.stdout, time.perf_counter() - start, cpu_seconds() - before)


@pytest.fixture(scope="session")
def page_stub():
    return import_from_server_tests("page_stub")


@pytest.fixture(scope="module")
def stub(page_stub):
    """The address of a server whose answers are fixed."""
    with page_stub.Running(page_stub.create_stub()) as address:
        yield address


@pytest.fixture(scope="session")
def settled():
    """Return a function that waits until a view shows the result of what is in its form."""

    def wait(page, timeout=None):
        page.locator(".result > *").first.wait_for(timeout=timeout)
        page.locator(".form:not([aria-busy]):not(.stale)").wait_for(timeout=timeout)

    return wait


@pytest.fixture
def opened_stub(window, stub, settled):
    """Return a function that opens an address of the page with fixed answers; at the end there were no errors."""
    with window(1100, permissions=["clipboard-read", "clipboard-write"]) as (page, errors, _):
        page.set_default_timeout(10_000)

        def go(address=""):
            page.goto(stub + address)
            settled(page)
            return page

        yield go
        assert errors == []


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def window(browser):
    """Return a context manager that opens a page and yields it, its errors and console messages, and the URLs it requests."""

    @contextmanager
    def open_(width, height=800, **options):
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        errors, urls = [], []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: urls.append(request.url))
        try:
            yield page, errors, urls
        finally:
            page.close()

    return open_
