"""No view of the page has a serious or moderate finding of axe-core, which npm fetches; where npm cannot, the test is skipped."""

import base64
import json
import shutil
import subprocess
import tarfile
import urllib.request

import pytest

pytestmark = pytest.mark.system
AXE = "axe-core@4.10.3"
LONG = 60_000
WITH_IMAGES = ("caption", "clip", "kinds")


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The script of axe-core (MPL 2.0), fetched for this test only."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("accessibility is NOT tested: npm is not installed")
    done = subprocess.run([npm, "pack", AXE, "--silent"], cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"accessibility is NOT tested: npm cannot fetch {AXE}: {done.stderr.strip()[:200]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as package:
        return package.extractfile("package/axe.min.js").read().decode()


@pytest.fixture(scope="module")
def served(runs, listening):
    with listening(runs) as server:
        yield server.url


@pytest.fixture(scope="module")
def grave_findings(axe):
    """Return a function that gives the findings of axe-core on a page that are moderate or worse."""

    def find(page):
        page.evaluate(axe)
        found = page.evaluate("async () => (await axe.run()).violations")
        grave = [one for one in found if one["impact"] in ("critical", "serious", "moderate")]
        return [(one["id"], one["impact"], [node["html"][:160] for node in one["nodes"]]) for one in grave]

    return find


def model_ids(url):
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        return [model["id"] for model in json.load(response)["data"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_or_moderate_in_any_view(window, served, settled, page_stub, grave_findings, theme):
    """Every tab of every model, with its result."""
    image = {"name": "shapes.png", "mimeType": "image/png", "buffer": base64.b64decode(page_stub.example_image())}
    findings, seen = {}, set()
    with window(1100, color_scheme=theme, reduced_motion="reduce", bypass_csp=True) as (page, _, _):
        page.set_default_timeout(LONG)
        for model in model_ids(served):
            page.goto(f"{served}/#{model}")
            page.reload()
            page.locator("#views button").first.wait_for()
            for name in page.locator("#views button").all_inner_texts():
                if name in seen and model not in WITH_IMAGES:
                    continue
                seen.add(name)
                page.get_by_role("tab", name=name, exact=True).first.click()
                page.locator(".form, #panel > p:not(:text('Opening'))").first.wait_for()
                if not page.locator(".form").count():  # a sentence in place of a view
                    continue
                if page.locator("input[type=file]").count() and not page.locator(".dropzone img").count():
                    page.locator("input[type=file]").set_input_files(image)
                settled(page)
                page.wait_for_timeout(250)
                findings[model, name] = grave_findings(page)
    assert {name: found for name, found in findings.items() if found} == {}
    assert seen >= {"Translate", "Generate", "Fill mask", "Attention", "Search heads", "What if", "Logit lens", "Flow", "Caption"}


@pytest.mark.parametrize("view", ["demo/translate", "demo/attention", "demo/whatif?off=cross.2.3", "writer/generate"])
def test_axe_finds_nothing_on_a_phone(window, stub, settled, grave_findings, view):
    with window(390, bypass_csp=True) as (page, _, _):
        page.goto(f"{stub}#{view}")
        settled(page)
        page.wait_for_timeout(400)  # the result fades in
        assert grave_findings(page) == []
