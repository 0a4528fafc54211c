"""The server's page in a real browser: every view, streaming, 2,000 tokens, what goes wrong, by keyboard alone."""

import base64
import json
import re
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
NASTY = "<img src=x onerror=alert(1)>"
LONG = {
    "task": "language",
    "data": {"world": {"number": 200, "held_out": 10}, "language": "target"},
    "tokens": {"size": 300},
    "model": {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 2200},
    "train": {"steps": 3, "tokens_per_batch": 512, "evaluate_every": 3, "save_every": 3, "log_every": 3},
}
REFUSED = re.compile(r"Failed to load resource: .*\b(401|422|503)\b|ERR_CONNECTION_REFUSED")


@pytest.fixture(scope="module")
def stub(stubs):
    with stubs.Running(stubs.stub()) as address:
        yield address


@pytest.fixture(scope="module")
def served(tmp_path_factory, runs, listening):
    """A tiny run of every task, behind the real server."""
    from regard.run.train import train

    long = train(LONG, tmp_path_factory.mktemp("served") / "long", device="cpu")
    with listening({**runs, "long": long}) as server:
        yield server.url + "/"


@pytest.fixture(scope="module")
def opened(window):
    """Opens the page at a model's view; at the end nothing was wrong, and nothing was asked of anybody but its server."""

    @contextmanager
    def open_(address, at="", width=1100, refused=False, **options):
        with window(width, **options) as (page, wrong, asked):
            page.set_default_timeout(20_000)
            page.goto(address + (f"#{at}" if at else ""))
            yield page
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("[style*='expression'], script:not([src]), [onclick]").count() == 0
        assert [one for one in wrong if not (refused and REFUSED.search(one))] == []
        assert [one for one in asked if not one.startswith((address, "data:", "blob:"))] == []

    return open_


def ask(address, verb, **body):
    """What the API answers to the same."""
    request = urllib.request.Request(f"{address}v1/{verb}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def give_picture(page, stubs):
    page.locator("input[type=file]").set_input_files(
        {"name": "shapes.png", "mimeType": "image/png", "buffer": base64.b64decode(stubs.picture())}
    )


def shaded(page, selector):
    """The words that have a colour of their own."""
    coloured = "nodes => nodes.filter(node => node.style.backgroundColor).map(node => node.textContent)"
    return page.locator(selector).evaluate_all(coloured)


def measured(page):
    page.locator(".trust table").wait_for()
    assert page.locator(".trust tr").count() >= 4 and page.locator(".trust .verdict").inner_text().endswith(".")
    assert "random" in page.locator(".trust table").inner_text()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


# every view, of real models


def test_a_translation_and_what_its_words_looked_at(opened, served):
    with opened(served, "en-de/translate") as page:
        page.locator("textarea").fill("A pig falls asleep.")
        press(page, "Translate")
        target = page.locator(".target .word")
        target.first.wait_for()
        (said,) = ask(served, "translate", model="en-de", text="A pig falls asleep.", align=True)["results"]
        assert target.all_inner_texts() == said["alignment"]["target"]
        target.first.hover()
        weights = said["alignment"]["weights"][0]
        sharpest = said["alignment"]["source"][weights.index(max(weights))]
        assert sharpest in shaded(page, ".source .word") and sharpest in page.locator(".told").first.inner_text()
        measured(page)
        page.locator("canvas.map").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert " → " in page.locator(".way .told").inner_text()
        for label, ending in (("SVG", b"<?xml"), ("PNG", b"\x89PNG"), (".attn", None)):
            with page.expect_download() as kept:
                press(page, f"download {label}")
            data = Path(kept.value.path()).read_bytes()
            assert len(data) > 500 and (ending is None or data.startswith(ending))
        page.get_by_role("tab", name="Beam tree").click()
        page.locator("svg.tree text.best").first.wait_for()
        assert page.locator("svg.tree text").count() > len(said["tokens"])
        with page.expect_download() as kept:
            press(page, "download SVG")
        assert b"<text" in Path(kept.value.path()).read_bytes()


def test_every_head_of_a_model(opened, served):
    with opened(served, "en-de/attention") as page:
        page.locator("textarea").fill("A pig falls asleep.")
        press(page, "Look")
        heads = page.locator(".thumbs button")
        heads.first.wait_for()
        found = ask(served, "attention", model="en-de", text="A pig falls asleep.", kind="cross")
        assert heads.count() == len(found["layers"]) * len(found["heads"])
        heads.nth(1).click()
        assert page.locator(".result h2").first.inner_text() == "Layer 1, head 2"
        page.keyboard.press("ArrowDown")  # the same head of the next layer
        assert page.locator(".result h2").first.inner_text() == f"Layer {found['layers'][1]}, head 2"
        page.get_by_label("all 2 heads of this layer").check()
        assert page.locator(".legend span").count() == 2
        page.locator(".lines .column").first.locator(".word").first.hover()
        assert "looks at" in page.locator(".way .told").inner_text() and shaded(page, ".lines .column:last-child .word")
        page.get_by_role("tab", name="Matrix").click()
        page.locator("canvas.map").wait_for()
        page.get_by_label("attention", exact=True).select_option("encoder")
        page.get_by_text("self-attention of the encoder").first.wait_for()
        with page.expect_download() as kept:
            press(page, "download .attn (all heads)")
        assert kept.value.suggested_filename == "en-de-heads.attn"
        measured(page)


def test_a_text_is_written_and_is_what_the_api_says(opened, served):
    with opened(served, "gpt/generate") as page:
        page.locator("textarea").fill("Der Hund")
        press(page, "Write on")
        words = page.locator(".target .word")
        words.first.wait_for()
        (said,) = ask(served, "generate", model="gpt", prompt="Der Hund", max_tokens=60, temperature=0.8, top_p=0.95, looks=True)[
            "results"
        ]
        assert words.count() == len(said["tokens"])
        shown = words.evaluate_all("all => all.filter(one => !one.classList.contains('mark')).map(one => one.textContent)")
        assert re.sub(r"[\s↵]", "", "".join(shown)) == re.sub(r"\s", "", said["written"])
        words.nth(3).hover()
        assert f"probability {said['looks']['steps'][3]['probability']:.2f}" in page.locator(".told").inner_text()
        assert page.locator(".choices li").count() >= 3 and shaded(page, ".words .word")
        words.nth(3).click()
        measured(page)


@pytest.mark.parametrize(
    "at, button, result",
    [
        ("masked/fill", "Fill in", ".bars li"),
        ("classify/classify", "Classify", ".bars li"),
        ("tag/tag", "Tag", ".tags span"),
        ("draw/draw", "Draw", ".gallery img"),
        ("en-de/embed", "Compare", "canvas.map"),
        ("masked/attention", "Look", ".thumbs button"),
    ],
)
def test_the_other_views_of_texts(opened, served, at, button, result):
    with opened(served, at) as page:
        if at.startswith("classify"):
            page.locator("textarea").fill("the dog sleeps")
        if at.startswith("draw"):
            page.get_by_text("Options").click()
            page.get_by_label("how many").fill("2")
        press(page, button)
        page.locator(result).first.wait_for()
        if at.startswith("classify"):
            measured(page)
            page.locator(".bars button").last.click()
            page.get_by_text("asked for").wait_for()
        if at.startswith("draw"):
            assert page.locator(result).count() == 2
            assert page.locator(result).first.evaluate("image => image.naturalWidth") > 0
            with page.expect_download() as kept:
                press(page, "download drawing 2")
            assert Path(kept.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "at, result",
    [
        ("caption/caption", ".target .word"),
        ("clip/match", ".bars li"),
        ("kinds/classify", ".bars li"),
        ("kinds/attention", "canvas.over"),
    ],
)
def test_views_of_pictures(opened, served, stubs, at, result):
    with opened(served, at) as page:
        give_picture(page, stubs)
        page.locator(f".result {result}").first.wait_for()
        if at == "caption/caption":
            over = page.locator(".result > canvas.over")
            before = over.evaluate("canvas => canvas.toDataURL()")
            page.locator(result).first.hover()
            assert over.evaluate("canvas => canvas.toDataURL()") != before
            assert page.locator(".frame").count() == page.locator(result).count()
            with page.expect_download():
                press(page, "download PNG of all words")
        measured(page)
        assert page.locator(".trust canvas.over").is_visible()


def test_a_picture_is_dropped_in(opened, served, stubs):
    with opened(served, "caption/caption") as page:
        page.locator(".well").wait_for()
        page.evaluate(
            """data => {
            const dataTransfer = new DataTransfer(), bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
            dataTransfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
            const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
            document.querySelector(".well").dispatchEvent(drop);
        }""",
            stubs.picture(),
        )
        page.locator(".target .word").first.wait_for()
        assert "dropped.png" in page.locator(".well").inner_text()


# much, little, and what goes wrong


def test_two_thousand_tokens_do_not_stop_it(opened, served):
    text = " ".join(["Der Hund schläft ."] * 340)
    with opened(served, "long/attention") as page:
        page.locator("textarea").fill(text)
        press(page, "Look")
        page.locator("canvas.map").wait_for(timeout=60_000)
        assert "tiles of" in page.locator(".result .hint").first.inner_text()
        page.locator(".thumbs button").last.click()
        page.get_by_role("tab", name="Lines").click()
        page.locator(".lines .word").nth(20).hover()
        assert "looks at" in page.locator(".way .told").inner_text()
        assert (
            page.evaluate("""new Promise(done => { const from = performance.now();
            requestAnimationFrame(() => done(performance.now() - from)); })""")
            < 1000
        )
        page.get_by_role("tab", name="Write").click()
        page.locator("textarea").fill(text)
        page.get_by_text("Options").click()
        page.get_by_label("tokens at most").fill("20")
        page.get_by_label("temperature").fill("50")  # untaught, it would end at once
        press(page, "Write on")
        page.locator(".target .word").first.wait_for(timeout=60_000)
        assert page.locator(".source .word").count() >= 2000
        page.locator(".target .word").first.hover()
        assert "probability" in page.locator(".told").inner_text()


def test_heads_too_many_for_one_answer_come_layer_by_layer(opened, stub):
    with opened(stub, "demo/attention", refused=True) as page:
        page.locator("textarea").fill("many words to look at")
        press(page, "Look")
        page.locator(".thumbs button").nth(11).click()
        assert page.locator(".result h2").first.inner_text() == "Layer 3, head 4"


def test_what_goes_wrong_is_said_in_words(opened, served):
    with opened(served, "masked/fill", refused=True) as page:
        page.locator("textarea").fill("nothing is left out")
        press(page, "Fill in")
        page.locator(".problem:visible").wait_for()
        assert "mask" in page.locator(".problem:visible").inner_text().lower()
        page.locator("textarea").fill("Now one [MASK] is.")
        press(page, "Fill in")
        page.locator(".bars li").first.wait_for()
        assert page.locator(".problem:visible").count() == 0
    with opened(served, "en-de/translate", refused=True) as page:
        page.locator("textarea").fill("a dog " * 100)
        press(page, "Translate")
        page.locator(".problem:visible").wait_for()
        assert "48" in page.locator(".problem:visible").inner_text()
        page.get_by_text("Options").click()
        page.get_by_label("beam").fill("99")
        press(page, "Translate")
        page.get_by_text("beam 99: should be from 1 to 16.").wait_for()
    with opened(served, "caption/caption") as page:
        press(page, "Caption")
        page.get_by_text("There is no picture yet").wait_for()
        page.locator("input[type=file]").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"no picture"})
        page.get_by_text("a.txt is not a picture").wait_for()


def test_a_busy_server_and_one_that_is_gone(opened, stubs):
    with stubs.Running(stubs.stub()) as address, opened(address, "demo/translate", refused=True) as page:
        page.locator("textarea").fill("busy")
        press(page, "Translate")
        page.get_by_text("too many are waiting. Try again in 3 seconds.").wait_for()
        page.route("**/v1/translate", lambda route: route.abort("connectionrefused"))
        page.locator("textarea").fill("gone")
        press(page, "Translate")
        page.get_by_text("The server cannot be reached.").wait_for()


def test_a_token_is_asked_for(opened, stubs):
    with stubs.Running(stubs.stub(token="a-secret-of-the-house")) as address, opened(address, refused=True) as page:
        page.get_by_label("The token that the server was started with").fill("a-secret-of-the-house")
        page.keyboard.press("Enter")
        page.get_by_role("tab", name="Translate").wait_for()
        assert "a-secret" not in page.url


def test_words_come_one_by_one_and_can_be_stopped(opened, stub):
    with opened(stub, "writer/generate") as page:
        page.get_by_text("Options").click()
        page.get_by_label("tokens at most").fill("280")
        press(page, "Write on")
        page.locator(".flow .word").nth(3).wait_for()
        first = page.locator(".flow .word").count()
        assert first < 280 and page.locator(".flow").get_attribute("aria-busy") == "true"
        page.locator(".flow .word").nth(first).wait_for()
        press(page, "Stop")
        page.get_by_text("then stopped").wait_for()
        page.get_by_label("tokens at most").fill("14")
        press(page, "Write on")
        page.locator(".target .word").nth(13).wait_for()
        assert page.locator("#status").text_content().strip()
    with opened(stub, "writer/generate") as page:
        page.locator("textarea").fill("break it")
        press(page, "Write on")
        page.get_by_text("the model stumbled; ask again").wait_for()
        assert page.locator(".flow .word").count() == 5  # what was said still stands


def test_words_stay_words(opened, stub):
    with opened(stub, "demo/translate") as page:
        page.locator("textarea").fill(f"{NASTY} \u202e {'x' * 300}")
        press(page, "Translate")
        page.locator(".target .word").first.hover()
        assert page.locator(".source").inner_text().startswith(NASTY) and page.locator("img:visible").count() == 0
        page.get_by_role("tab", name="Heads").click()
        page.locator("textarea").fill(NASTY)
        press(page, "Look")
        page.locator(".lines .word").first.wait_for()
        assert page.locator("#panel img:visible").count() == 0


# by keyboard, on a phone, in the dark


def focus(page):
    return page.evaluate("""() => { const node = document.activeElement, style = getComputedStyle(node);
        return [node.id || node.className || node.tagName,
                node.getAttribute("aria-label") || node.textContent.trim().slice(0, 40),
                style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1]; }""")


def tab_to(page, holds, most=30):
    """Press Tab until the focus is where it is wanted; it can be seen wherever it goes."""
    for _ in range(most):
        page.keyboard.press("Tab")
        name, words, seen = focus(page)
        assert seen, f"the focus on {name} {words} cannot be seen"
        if page.evaluate(f"document.activeElement.matches({holds!r})"):
            return words
    raise AssertionError(f"{holds} is not reached")


def test_by_keyboard_alone(opened, stub):
    with opened(stub) as page:
        page.get_by_role("tab", name="Translate").wait_for()
        page.keyboard.press("Tab")
        assert focus(page)[1] == "Skip to the view"
        tab_to(page, "#model")
        tab_to(page, "[role=tab]")
        tab_to(page, "textarea")
        page.keyboard.type("The goat drank because it was thirsty.")
        page.keyboard.press("Control+Enter")
        page.locator(".target .word").first.wait_for()
        tab_to(page, ".target .word")
        page.keyboard.press("ArrowRight")
        assert "Ziege looked at goat" in page.locator(".told").first.inner_text() and "goat" in shaded(page, ".source .word")
        page.keyboard.press("Enter")  # kept, and measured
        assert page.locator(".target [aria-pressed=true]").inner_text() == "Ziege"
        page.get_by_text("the word '2'").wait_for()
        tab_to(page, ".ways [role=tab]")
        page.keyboard.press("ArrowRight")
        page.locator("svg.tree").wait_for()
        page.keyboard.press("ArrowLeft")
        tab_to(page, "canvas.map")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert "Ziege → The" in page.locator(".way .told").inner_text()
        tab_to(page, "button.plain")
        page.keyboard.press("Enter")  # all heads of this sentence
        page.locator(".thumbs button").first.wait_for()
        tab_to(page, ".thumbs button")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.locator(".result h2").first.inner_text() == "Layer 2, head 2"
        tab_to(page, ".trust select")
        page.keyboard.press("ArrowDown")
        assert page.locator(".trust .verdict").inner_text().startswith("rollout:")
        page.go_back()
        page.get_by_role("button", name="Translate", exact=True).wait_for()


@pytest.mark.parametrize(
    "at",
    [
        "demo/translate",
        "demo/attention",
        "writer/generate",
        "bert/fill",
        "film/classify",
        "tagger/tag",
        "reader/answer",
        "shapes/caption",
        "clip/match",
        "dalle/draw",
        "demo/embed",
    ],
)
def test_on_a_phone_of_320_pixels(opened, stub, stubs, at):
    with opened(stub, at, width=320, color_scheme="dark", has_touch=True) as page:
        page.get_by_role("tab", selected=True).first.wait_for()
        assert page.locator("html").get_attribute("data-theme") == "dark"
        if page.locator("input[type=file]").count():
            give_picture(page, stubs)
        else:
            for area in page.locator("textarea").all():
                area.fill(area.get_attribute("placeholder") or "a text")
            page.locator("button.main").tap()
        page.locator(".result > *").first.wait_for()
        if page.locator(".target .word").count():
            page.locator(".target .word").nth(2).tap()
            assert page.locator(".target [aria-pressed=true]").count() == 1
        if at == "demo/translate":
            page.get_by_role("tab", name="Beam tree").tap()  # wider than the phone
            page.locator("svg.tree").wait_for()
        page.locator("#theme").tap()
        assert page.locator("html").get_attribute("data-theme") == "light"
