"""`make docs`: every page of the tour runs, every link leads somewhere, and the site opens in a real browser."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
HELPERS = (ROOT / "docs" / "tour" / "helpers.py").read_text(encoding="utf-8")
TRANSLATOR = re.search(r'train_once\("translator", "(.*?)"', HELPERS)[1]
"""The command that trains the tour's translator."""


@pytest.fixture(scope="module")
def site(tmp_path_factory, cpu_seconds, demo):
    """Build the site with the demo as the tour's translator; the captioner is trained."""
    folder = tmp_path_factory.mktemp("docs")
    tour, before = folder / "tour", cpu_seconds()
    shutil.copytree(demo.folder, tour / "translator")
    (tour / "translator.made").write_text(TRANSLATOR, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(folder / "site")],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "REGARD_TOUR": str(tour)},
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    seconds = cpu_seconds() - before + demo.cpu_seconds
    print(f"the site took {seconds:.0f} s of CPU time, including the translator")
    assert seconds < 720, "six minutes on two cores, however busy the machine is"
    assert (tour / "translator" / "log.jsonl").read_bytes() == (demo.folder / "log.jsonl").read_bytes(), "trained again"
    return folder / "site"


def pages(site):
    """Every page that opens from the file system; 404.html is for a server."""
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def printed(site, page):
    """Return what the cells of a page printed."""
    text = (site / "tour" / page).read_text(encoding="utf-8")
    outputs = re.findall(r'<div class="output">(.*?)</div>\s*</div>', text, re.S)
    return unescape(re.sub(r"<[^>]+>", "", "\n".join(outputs)))


def test_tour_pages_print_the_numbers_of_the_lecture(site):
    assert "weights 0.88, 0.12" in printed(site, "01-scores.html") and "[0.42, 0.58, 0.00, 0.00]" in printed(
        site, "02-masks.html"
    )
    assert "aligned word" in printed(site, "03-heads.html")
    assert "the same in any order: True" in printed(site, "04-positions.html")
    assert float(re.search(r"alignment error +([\d.]+)", printed(site, "06-alignment.html"))[1]) < 0.25


def test_the_head_that_resolves_it_attends_to_the_antecedent(site):
    """Pronouns are mostly right; the head attends to the antecedent more than to the other nouns together."""
    text = printed(site, "07-it.html")
    right, wrong = (float(re.search(rf"on the {name} ([\d.]+)", text)[1]) for name in ("antecedent", "two other nouns"))
    assert right > 2 * wrong
    assert int(re.search(r"pronouns that are right: (\d+)%", text)[1]) >= 80


def test_captioner_attends_to_what_a_caption_names(site):
    fractions = dict(re.findall(r"(attention inside|inside by chance) +(\d+) %", printed(site, "08-images.html")))
    assert int(fractions["attention inside"]) > 2 * int(fractions["inside by chance"])


def test_every_tour_page_has_a_figure(site):
    figures = {path.name.split("-")[0] for path in (site / "tour").iterdir() if path.suffix in (".svg", ".png")}
    assert figures == {f"{number:02}" for number in range(1, 11)}


def test_every_link_leads_somewhere(site):
    found = pages(site)
    assert len(found) > 30
    texts = {path.resolve(): path.read_text(encoding="utf-8") for path in found}
    for page, text in texts.items():
        for target in map(unescape, re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            if target.startswith(("https://", "data:")):
                assert not re.search(rf'<(?:link|img|script)[^>]*"{re.escape(target)}"', text) or target.startswith("data:")
                continue
            path, _, fragment = target.partition("#")
            there = (page.parent / unquote(path)).resolve() if path else page
            assert there.is_file() and there.is_relative_to(site.resolve()), f"{page.relative_to(site)}: {target}"
            if fragment and not fragment.startswith("__"):
                assert f'id="{unquote(fragment)}"' in texts[there], f"{page.relative_to(site)}: {target}"


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_every_page_opens_from_a_file_without_errors_or_outside_requests(site, window, width, scheme):
    with window(width, 900, color_scheme=scheme) as (page, errors, urls):
        page.on("requestfailed", lambda request: errors.append(request.url))
        for path in pages(site):
            page.goto(path.as_uri())
            name = f"{path.relative_to(site)} at {width}"
            assert page.locator("h1").first.inner_text(), name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name}: the page itself scrolls sideways"
            drawn = page.evaluate("[...document.images].map(image => [image.naturalWidth, image.clientWidth, image.src])")
            for natural, shown, source in drawn:
                assert natural > 0 and shown >= min(300, natural), f"{name}: {source}"
            assert not errors, name
    assert all(url.startswith((site.as_uri(), "data:", "about:")) for url in urls)


def test_search_works_from_a_file(site, window):
    with window(1300, 900) as (page, errors, urls):
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").press_sequentially(
            "checkpoint"
        )  # the search reads its field when a key is released
        page.locator(".md-search-result__item").first.wait_for()
        assert page.locator(".md-search-result__item", has_text="Durability").count() and not errors
    assert all(url.startswith((site.as_uri(), "data:", "about:")) for url in urls)


def test_api_reference_documents_every_public_name(site):
    import regard

    text = (site / "api.html").read_text(encoding="utf-8")
    missing = [name for name in regard.__all__ if name != "__version__" and not re.search(rf'id="regard[\w.]*\.{name}"', text)]
    assert not missing


def test_the_tour_command_trains_its_translator(tmp_path):
    """The command of the pages, on less data."""
    smaller = "--set train.steps=4 --set data.world.number=2000 --set decode.max_tokens=8"
    words = shlex.split(f"{TRANSLATOR} {smaller}")
    done = subprocess.run([sys.executable, "-m", "regard", *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "translator" / "outputs" / "test.txt").read_text().count("\n") == 200


@pytest.mark.parametrize("page", ["01-scores.py", "05-norms.py"])
def test_a_tour_page_runs_as_a_script(page, tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "tour" / page)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert not list(tmp_path.iterdir()), "figures are written to build/tour, whatever the working directory"
