"""The server's page in a real browser: every view, streaming, 2,000 tokens, errors, keyboard only, a phone."""

import base64
import hashlib
import json
import re
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
BASELINE = "random"
HTML_INJECTION = "<img src=x onerror=alert(1)>"
LONG_CONTEXT_RECIPE = {
    "task": "language",
    "data": {"world": {"number": 200, "held_out": 10}, "language": "target"},
    "tokens": {"size": 300},
    "model": {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 2200},
    "train": {"steps": 3, "tokens_per_batch": 512, "evaluate_every": 3, "save_every": 3, "log_every": 3},
}
EXPECTED_ERRORS = re.compile(r"Failed to load resource: .*\b(401|422|503)\b|ERR_CONNECTION_REFUSED")


@pytest.fixture(scope="module")
def served(tmp_path_factory, runs, listening):
    """The URL of the real server, with a tiny run of every task."""
    from regard.run.train import train

    long = train(LONG_CONTEXT_RECIPE, tmp_path_factory.mktemp("served") / "long", device="cpu")
    with listening({**runs, "long": long}) as server:
        yield server.url + "/"


@pytest.fixture(scope="module")
def opened(window, settled):
    """Return a context manager that opens a model's view and waits for the result of its `example`; at the end there were no
    errors, and no request to another server."""

    @contextmanager
    def open_(address, view="", width=1100, example=True, expect_errors=False, **options):
        with window(width, **options) as (page, errors, urls):
            page.set_default_timeout(20_000)
            page.goto(address + (f"#{view}" if view else ""))
            if view and example:
                settled(page)
            yield page
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("[style*='expression'], script:not([src]), [onclick]").count() == 0
        assert [message for message in errors if not (expect_errors and EXPECTED_ERRORS.search(message))] == []
        assert [url for url in urls if not url.startswith((address, "data:", "blob:"))] == []

    return open_


def post(address, verb, **body):
    """Return the API's response."""
    request = urllib.request.Request(f"{address}v1/{verb}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


@pytest.fixture
def upload_image(page_stub, settled):
    """Return a function that gives the view an image and waits for its result."""

    def upload(page):
        image = base64.b64decode(page_stub.example_image())
        page.locator("input[type=file]").set_input_files({"name": "uploaded.png", "mimeType": "image/png", "buffer": image})
        page.locator(".dropzone", has_text="uploaded.png").wait_for()
        settled(page)

    return upload


def pixels(canvas):
    """Return a digest of what a canvas shows."""
    return hashlib.sha256(canvas.evaluate("canvas => canvas.toDataURL()").encode()).hexdigest()


def shaded_words(page, selector):
    """Return the words that are shaded by a weight."""
    script = "nodes => nodes.filter(node => node.style.backgroundColor).map(node => node.textContent)"
    return page.locator(selector).evaluate_all(script)


def check_faithfulness(page):
    """Wait for a verdict and a table; a newer answer may replace them meanwhile, so that one look must see all of it."""
    page.wait_for_function(
        """baseline => {
            const panel = document.querySelector(".faithfulness"), verdict = panel && panel.querySelector(".verdict");
            return verdict && verdict.innerText.endsWith(".") && panel.querySelectorAll("tr").length >= 4
                && panel.querySelector("table").innerText.includes(baseline);
        }""",
        arg=BASELINE,
    )


def check_overlay_options(page):
    """The legend ends at the largest weight shown or, absolute, at 1; contour lines differ; the address keeps both."""
    overlay, options = page.locator(".result canvas.overlay"), page.locator(".result .overlay-options")
    shown, end = pixels(overlay), options.locator(".scale span").nth(1)
    assert 0 < float(end.inner_text()) < 1
    options.get_by_label("absolute scale").check()
    absolute = pixels(overlay)
    assert end.inner_text() == "1" and absolute != shown and "scale=absolute" in page.url
    options.get_by_label("absolute scale").uncheck()
    options.get_by_label("contour lines").check()
    assert pixels(overlay) not in (shown, absolute) and "overlay=contours" in page.url
    options.get_by_label("contour lines").uncheck()
    assert pixels(overlay) == shown


def click(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def open_options(page):
    page.locator(".more").evaluate("details => { details.open = true; }")


def submit(page, name):
    """Press the button of the form, and wait until what is shown belongs to its fields."""
    click(page, name)
    page.locator(".form:not([aria-busy])").wait_for()


# every view, with real models


def test_translate_view_shows_the_alignment_and_the_beam_tree(opened, served):
    with opened(served, "en-de/translate") as page:
        page.locator("textarea").fill("A pig falls asleep.")
        submit(page, "Translate")
        target = page.locator(".target .word")
        target.first.wait_for()
        (expected,) = post(served, "translate", model="en-de", text="A pig falls asleep.", alignment=True)["results"]
        assert target.all_inner_texts() == expected["alignment"]["target"]
        target.first.hover()
        weights = expected["alignment"]["weights"][0]
        sharpest = expected["alignment"]["source"][weights.index(max(weights))]
        assert sharpest in shaded_words(page, ".source .word") and sharpest in page.locator(".readout").first.inner_text()
        check_faithfulness(page)
        page.locator("canvas.map").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert " → " in page.locator(".tab-panel .readout").inner_text()
        for label, magic in (("SVG", b"<?xml"), ("PNG", b"\x89PNG"), (".attn", None)):
            with page.expect_download() as download:
                click(page, f"download {label}")
            data = Path(download.value.path()).read_bytes()
            assert len(data) > 500 and (magic is None or data.startswith(magic))
        page.get_by_role("tab", name="Beam tree").click()
        page.locator("svg.tree text.best").first.wait_for()
        assert page.locator("svg.tree text").count() > len(expected["tokens"])
        with page.expect_download() as download:
            click(page, "download SVG")
        assert b"<text" in Path(download.value.path()).read_bytes()


def test_attention_view_shows_every_head(opened, served):
    with opened(served, "en-de/attention") as page:
        page.locator("textarea").fill("A pig falls asleep.")
        submit(page, "Show attention")
        heads = page.locator(".thumbnails button")
        heads.first.wait_for()
        found = post(served, "attention", model="en-de", text="A pig falls asleep.", kind="cross")
        assert heads.count() == len(found["layers"]) * len(found["heads"])
        heads.nth(1).click()
        assert page.locator(".result h2").first.inner_text() == "Layer 1, head 2"
        page.keyboard.press("ArrowDown")  # the same head of the next layer
        assert page.locator(".result h2").first.inner_text() == f"Layer {found['layers'][1]}, head 2"
        page.get_by_label("all 2 heads of this layer").check()
        assert page.locator(".legend span").count() == 2
        page.locator(".lines .column").first.locator(".word").first.hover()
        assert "attends to" in page.locator(".tab-panel .readout").inner_text() and shaded_words(
            page, ".lines .column:last-child .word"
        )
        page.get_by_role("tab", name="Matrix").click()
        page.locator("canvas.map").wait_for()
        page.get_by_label("attention", exact=True).select_option("encoder")
        page.get_by_text("self-attention of the encoder").first.wait_for()
        with page.expect_download() as download:
            click(page, "download .attn (all heads)")
        assert download.value.suggested_filename == "en-de-heads.attn"
        check_faithfulness(page)


def test_generate_view_equals_the_api(opened, served):
    with opened(served, "gpt/generate") as page:
        page.locator("textarea").fill("Der Hund")
        click(page, "Generate")
        words = page.locator(".target .word")
        words.first.wait_for()
        (expected,) = post(
            served, "generate", model="gpt", prompt="Der Hund", max_tokens=60, temperature=0.8, top_p=0.95, attention=True
        )["results"]
        assert words.count() == len(expected["tokens"])
        shown = words.evaluate_all("all => all.filter(one => !one.classList.contains('special')).map(one => one.textContent)")
        assert re.sub(r"[\s↵]", "", "".join(shown)) == re.sub(r"\s", "", expected["continuation"])
        words.nth(3).hover()
        assert f"probability {expected['attention']['steps'][3]['probability']:.2f}" in page.locator(".readout").inner_text()
        assert page.locator(".choices li").count() >= 3 and shaded_words(page, ".words .word")
        words.nth(3).click()
        check_faithfulness(page)


@pytest.mark.parametrize(
    "view, button, result",
    [
        ("masked/fill", "Fill in", ".bars li"),
        ("classify/classify", "Classify", ".bars li"),
        ("tag/tag", "Tag", ".tags span"),
        ("draw/draw", "Draw", ".gallery img"),
        ("en-de/embed", "Compare", "canvas.map"),
        ("masked/attention", "Show attention", ".thumbnails button"),
    ],
)
def test_other_views_of_texts(opened, served, view, button, result):
    with opened(served, view) as page:
        if view.startswith("classify"):
            page.locator("textarea").fill("the dog sleeps")
        if view.startswith("draw"):
            page.get_by_text("Options").click()
            page.get_by_label("number").fill("2")
        submit(page, button)
        page.locator(result).first.wait_for()
        if view.startswith("classify"):
            check_faithfulness(page)
            page.locator(".bars button").last.click()
            page.get_by_text(", selected").first.wait_for()
        if view.startswith("draw"):
            assert page.locator(result).count() == 2
            assert page.locator(result).first.evaluate("image => image.naturalWidth") > 0
            with page.expect_download() as download:
                click(page, "download image 2")
            assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "view, result",
    [
        ("caption/caption", ".target .word"),
        ("clip/match", ".bars li"),
        ("kinds/classify", ".bars li"),
        ("kinds/attention", "canvas.overlay"),
    ],
)
def test_views_of_images(opened, served, upload_image, view, result):
    with opened(served, view) as page:
        upload_image(page)
        page.locator(f".result {result}").first.wait_for()
        if view == "caption/caption":
            overlay = page.locator(".result > canvas.overlay")
            before = pixels(overlay)
            page.locator(result).first.hover()
            assert pixels(overlay) != before
            assert page.locator(".frame").count() == page.locator(result).count()
            with page.expect_download():
                click(page, "download PNG of all words")
        if view == "kinds/attention":
            check_overlay_options(page)
        check_faithfulness(page)
        page.locator(".faithfulness canvas.overlay").wait_for()
        page.locator(".faithfulness .overlay-options .scale").filter(has_text=re.compile(r"^\s*-")).wait_for()


def test_image_can_be_dropped(opened, served, page_stub):
    with opened(served, "caption/caption") as page:
        page.locator(".dropzone").wait_for()
        page.evaluate(
            """data => {
            const dataTransfer = new DataTransfer(), bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
            dataTransfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
            const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
            document.querySelector(".dropzone").dispatchEvent(drop);
        }""",
            page_stub.example_image(),
        )
        page.locator(".target .word").first.wait_for()
        assert "dropped.png" in page.locator(".dropzone").inner_text()


# long texts and errors


def test_two_thousand_tokens_stay_responsive(opened, served):
    text = " ".join(["Der Hund schläft ."] * 340)
    with opened(served, "long/attention") as page:
        page.locator("textarea").fill(text)
        submit(page, "Show attention")
        page.locator("canvas.map").wait_for(timeout=60_000)
        assert "tiles of" in page.locator(".result .hint").first.inner_text()
        page.locator(".thumbnails button").last.click()
        page.get_by_role("tab", name="Lines").click()
        page.locator(".lines .word").nth(20).hover()
        assert "attends to" in page.locator(".tab-panel .readout").inner_text()
        assert (
            page.evaluate("""new Promise(done => { const from = performance.now();
            requestAnimationFrame(() => done(performance.now() - from)); })""")
            < 1000
        )
        page.get_by_role("tab", name="Generate").click()
        page.locator("textarea").fill(text)
        open_options(page)
        page.get_by_label("max tokens").fill("20")
        page.get_by_role("spinbutton", name="temperature").fill("50")  # an untrained model would end at once
        click(page, "Generate")
        page.locator(".target .word").first.wait_for(timeout=60_000)
        assert page.locator(".source .word").count() >= 2000
        page.locator(".target .word").first.hover()
        assert "probability" in page.locator(".readout").inner_text()


def test_too_many_heads_for_one_response_are_fetched_layer_by_layer(opened, stub):
    with opened(stub, "demo/attention", expect_errors=True) as page:
        page.locator("textarea").fill("many words to attend to")
        submit(page, "Show attention")
        page.locator(".thumbnails button").nth(11).click()
        assert page.locator(".result h2").first.inner_text() == "Layer 3, head 4"


def test_errors_are_shown_as_messages(opened, served, stub):
    with opened(served, "masked/fill", expect_errors=True) as page:
        page.locator("textarea").fill("no mask here")
        submit(page, "Fill in")
        page.locator(".error:visible").wait_for()
        assert "mask" in page.locator(".error:visible").inner_text().lower()
        page.locator("textarea").fill("Now one [MASK] here.")
        submit(page, "Fill in")
        page.locator(".bars li").first.wait_for()
        assert page.locator(".error:visible").count() == 0
    with opened(served, "en-de/translate", expect_errors=True) as page:
        page.locator("textarea").fill("a dog " * 100)
        submit(page, "Translate")
        page.locator(".error:visible").wait_for()
        assert "48" in page.locator(".error:visible").inner_text()
        page.get_by_text("Options").click()
        page.get_by_label("beam size").fill("99")
        submit(page, "Translate")
        page.get_by_text("beam size 99: should be from 1 to 16.").wait_for()
    with opened(stub, "shapes/caption", example=False) as page:
        click(page, "Caption")
        page.get_by_text("There is no image yet").wait_for()
        page.locator("input[type=file]").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"not an image"})
        page.get_by_text("a.txt is not an image").wait_for()


def test_overloaded_and_unreachable_server(opened, page_stub):
    with page_stub.Running(page_stub.create_stub()) as address, opened(address, "demo/translate", expect_errors=True) as page:
        page.locator("textarea").fill("busy")
        submit(page, "Translate")
        page.get_by_text("the queue is full. Try again in 3 seconds.").wait_for()
        page.route("**/v1/translate", lambda route: route.abort("connectionrefused"))
        page.locator("textarea").fill("gone")
        submit(page, "Translate")
        page.get_by_text("The server cannot be reached.").wait_for()


def test_page_asks_for_the_token(opened, page_stub):
    with (
        page_stub.Running(page_stub.create_stub(token="a-secret-of-the-house")) as address,
        opened(address, expect_errors=True) as page,
    ):
        page.get_by_label("The token that the server was started with").fill("a-secret-of-the-house")
        page.keyboard.press("Enter")
        page.get_by_role("tab", name="Translate").wait_for()
        assert "a-secret" not in page.url


def test_generation_streams_and_can_be_stopped(opened, stub):
    with opened(stub, "writer/generate") as page:
        page.get_by_text("Options").click()
        page.get_by_label("max tokens").fill("280")
        click(page, "Generate")
        page.locator(".streaming .word").nth(3).wait_for()
        first = page.locator(".streaming .word").count()
        assert first < 280 and page.locator(".streaming").get_attribute("aria-busy") == "true"
        page.locator(".streaming .word").nth(first).wait_for()
        click(page, "Stop")
        page.get_by_text(", stopped.").wait_for()
        page.get_by_label("max tokens").fill("14")
        click(page, "Generate")
        page.locator(".target .word").nth(13).wait_for()
        assert page.locator("#status").text_content().strip()
    with opened(stub, "writer/generate") as page:
        page.locator("textarea").fill("break it")
        click(page, "Generate")
        page.get_by_text("the model failed; try again").wait_for()
        assert page.locator(".streaming .word").count() == 5  # the partial text stays


def test_html_in_texts_is_shown_as_text(opened, stub):
    with opened(stub, "demo/translate") as page:
        page.locator("textarea").fill(f"{HTML_INJECTION} \u202e {'x' * 300}")
        submit(page, "Translate")
        page.locator(".target .word").first.hover()
        assert page.locator(".source").inner_text().startswith(HTML_INJECTION) and page.locator("img:visible").count() == 0
        page.get_by_role("tab", name="Attention").click()
        page.locator("textarea").fill(HTML_INJECTION)
        submit(page, "Show attention")
        page.locator(".lines .word").first.wait_for()
        assert page.locator("#panel img:visible").count() == 0


# keyboard only, small screen, dark theme


def focus(page):
    return page.evaluate("""() => { const node = document.activeElement, style = getComputedStyle(node);
        return [node.id || node.className || node.tagName,
                node.getAttribute("aria-label") || node.textContent.trim().slice(0, 40),
                style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1]; }""")


def tab_to(page, selector, limit=30):
    """Press Tab until the focus matches a selector; the focus must be visible on the way."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        name, text, visible = focus(page)
        assert visible, f"the focus on {name} {text} is not visible"
        if page.evaluate(f"document.activeElement.matches({selector!r})"):
            return text
    raise AssertionError(f"{selector} is not reached")


def test_page_works_by_keyboard_only(opened, stub):
    with opened(stub) as page:
        page.get_by_role("tab", name="Translate").wait_for()
        page.keyboard.press("Tab")
        assert focus(page)[1] == "Skip to the view"
        tab_to(page, "#model")
        tab_to(page, "[role=tab]")
        tab_to(page, "textarea")
        page.keyboard.type("The goat drank because it was thirsty.")
        with page.expect_response("**/v1/translate"):  # until then the worked example is shown
            page.keyboard.press("Control+Enter")
        page.wait_for_timeout(300)
        page.locator(".target .word").first.wait_for()
        tab_to(page, ".target .word")
        page.keyboard.press("ArrowRight")
        assert "Ziege attended to goat" in page.locator(".readout").first.inner_text() and "goat" in shaded_words(
            page, ".source .word"
        )
        page.keyboard.press("Enter")  # pins and explains the word
        assert page.locator(".target [aria-pressed=true]").inner_text() == "Ziege"
        page.get_by_text("the word '2'").wait_for()
        tab_to(page, ".tabs [role=tab]")
        page.keyboard.press("ArrowRight")
        page.locator("svg.tree").wait_for()
        page.keyboard.press("ArrowLeft")
        tab_to(page, "canvas.map")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert "Ziege → The" in page.locator(".tab-panel .readout").inner_text()
        tab_to(page, "button.plain")
        page.keyboard.press("Enter")  # all attention heads for this sentence
        page.locator(".thumbnails button").first.wait_for()
        tab_to(page, ".thumbnails button")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.locator(".result h2").first.inner_text() == "Layer 2, head 2"
        note = "The view shows layer 2, head 2; below is layer 1, head 1."
        assert page.locator(".faithfulness .hint").first.inner_text().startswith(note)
        tab_to(page, ".faithfulness button")
        page.keyboard.press("Enter")  # measures this head
        page.get_by_text("Attention here is that of layer 2 of 2, head 2.").wait_for()
        assert page.locator(".faithfulness .believe").inner_text().startswith("Believe occlusion here")
        tab_to(page, ".faithfulness select")
        page.keyboard.press("ArrowUp")  # from the believed method
        assert page.locator(".faithfulness .verdict").inner_text().startswith("rollout:")
        page.go_back()
        page.get_by_role("button", name="Translate", exact=True).wait_for()


@pytest.mark.parametrize(
    "view",
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
def test_page_fits_a_phone_of_320_pixels(opened, stub, upload_image, view):
    example = view not in ("shapes/caption", "clip/match")
    with opened(stub, view, width=320, example=example, color_scheme="dark", has_touch=True) as page:
        page.locator(".form").wait_for()
        assert page.locator("html").get_attribute("data-theme") == "dark"
        if page.locator("input[type=file]").count():
            upload_image(page)
        else:
            for area in page.locator("textarea").all():
                area.fill(area.get_attribute("placeholder") or "a text")
            page.locator("button.main").tap()
        page.locator(".result > *").first.wait_for()
        if page.locator(".target .word").count():
            page.locator(".target .word").nth(2).tap()
            assert page.locator(".target [aria-pressed=true]").count() == 1
        if view == "demo/translate":
            page.get_by_role("tab", name="Beam tree").tap()  # wider than the screen
            page.locator("svg.tree").wait_for()
        page.locator("#theme").tap()
        assert page.locator("html").get_attribute("data-theme") == "light"


@pytest.mark.parametrize("width", [1440, 1024, 390, 320])
def test_faithfulness_table_is_shown_whole(opened, served, width):
    with opened(served, "en-de/translate", width=width) as page:
        check_faithfulness(page)
        needed, given = page.locator(".faithfulness .scroll").evaluate("box => [box.scrollWidth, box.clientWidth]")
        assert needed <= given


def hover_matrix_row(page, row, column=0.5):
    """Point at a row of the matrix, between its left and right edge."""
    page.locator("canvas.map").scroll_into_view_if_needed()
    box = page.locator("canvas.map").bounding_box()
    page.mouse.move(box["x"] + column * box["width"], box["y"] + box["height"] - 2 - 20 * (2 * row + 1))


def test_matrix_row_lights_its_words_and_the_chosen_head_shades_them(opened, stub):
    sentence = "The goat drank because it was thirsty."
    with opened(stub, f"demo/translate?text={sentence}", width=1440) as page:
        page.locator("canvas.map").wait_for()
        hover_matrix_row(page, row=1)  # the last but one
        (lit,) = page.locator(".target .word.on").all_inner_texts()
        assert lit == page.locator(".target .word").all_inner_texts()[-2] and shaded_words(page, ".source .word")
        assert page.get_by_label("head", exact=True).is_disabled()
        page.get_by_label("layer", exact=True).select_option("1")
        page.get_by_label("head", exact=True).select_option("2")
        page.get_by_text("layer 1, head 2. Rows are").wait_for()
        page.locator(".target .word").last.hover()
        assert "attended to The" in page.locator(".readout").first.inner_text()
        assert "layer=1" in page.url and "head=2" in page.url
        page.reload()
        page.get_by_text("layer 1, head 2. Rows are").wait_for()


def test_matrix_row_lights_the_lines_of_its_query(opened, stub):
    with opened(stub, "demo/attention?text=The goat drank.&panel=Matrix", width=1440) as page:
        page.locator(".side-by-side .lines .word").first.wait_for()
        before = pixels(page.locator(".lines canvas"))
        hover_matrix_row(page, row=0)
        assert page.locator(".lines .column:first-child .word.on").all_inner_texts() == ["drank."]
        assert pixels(page.locator(".lines canvas")) != before
