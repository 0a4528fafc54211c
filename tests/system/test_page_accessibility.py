"""The page has no serious or moderate finding of axe-core, which npm fetches; the test is skipped where npm cannot."""

import shutil
import subprocess
import tarfile

import pytest

pytestmark = pytest.mark.system
AXE = "axe-core@4.10.3"
VIEWS = ["demo/translate", "demo/attention", "demo/whatif", "writer/generate", "film/classify", "bert/fill"]


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
def stub(page_stub):
    with page_stub.Running(page_stub.create_stub()) as address:
        yield address


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious_or_moderate(window, stub, axe, view, theme):
    with window(1100, color_scheme=theme, bypass_csp=True) as (page, _, _):
        page.goto(f"{stub}#{view}")
        page.locator(".result > *").first.wait_for()
        page.locator(".form:not([aria-busy]):not(.stale)").wait_for()
        page.wait_for_timeout(400)  # the result fades in
        page.evaluate(axe)
        found = page.evaluate("async () => (await axe.run()).violations")
    grave = [one for one in found if one["impact"] in ("critical", "serious", "moderate")]
    assert [(one["id"], one["impact"], [node["html"][:160] for node in one["nodes"]]) for one in grave] == []
