"""The logit lens, the flow view and the training view in a real browser: as exported pages and in the page of the server."""

import pytest

from regard.run.train import train
from regard.show.training_view import PAGE, TrainingView

pytestmark = pytest.mark.system
TEXT = "the goat sees the cake"
SIZES = [(1440, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    """Return the views of a translator with their pages."""
    folder, found = tmp_path_factory.mktemp("views"), {}
    for view in ("lens", "flow"):
        figure = tiny_run.show(TEXT, view=view)
        found[view] = figure.data, figure.save(folder / f"{view}.html")
    return found


@pytest.fixture(scope="module")
def served(listening, tiny_run):
    with listening({"en-de": tiny_run}) as server:
        yield server


def shown_stage(page):
    return page.locator(".flow-main h2").inner_text()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_arrow_keys_go_through_every_stage_of_the_flow(exported, window, width, scheme):
    flow, path = exported["flow"]
    with window(width, 900, color_scheme=scheme) as (page, errors, urls):
        page.goto(path.as_uri())
        for number, stage in enumerate(flow.stages, start=1):
            assert shown_stage(page) == stage.title and page.locator(".flow-sentence").inner_text() == stage.sentence
            assert page.locator(".flow-count").inner_text() == f"{number} of {len(flow.stages)}"
            assert page.locator(".flow-frame canvas").count() == len(stage.panels)
            page.keyboard.press("ArrowRight")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("Home")
        assert shown_stage(page) == flow.stages[0].title
        assert not errors and urls == [path.as_uri()]


def test_the_numbers_of_the_flow_are_the_models(exported, window):
    """The row that is written out under a residual connection adds up, and is the row of the model."""
    flow, path = exported["flow"]
    index = next(i for i, stage in enumerate(flow.stages) if stage.name == "residual")
    with window(1440, 900) as (page, errors, _):
        page.goto(path.as_uri())
        for _ in range(index):
            page.keyboard.press("ArrowRight")
        page.locator(".flow-tokens button").nth(1).click()
        rows = page.locator(".flow-numbers tr").all()
        shown = [[float(cell.replace("−", "-")) for cell in row.locator("td").all_inner_texts()[:8]] for row in rows]
        for numbers, panel in zip(shown, flow.stages[index].panels):
            assert numbers == pytest.approx(panel.values[1, :8].tolist(), abs=0.011)
        assert [a + b for a, b in zip(*shown[:2])] == pytest.approx(shown[2], abs=0.021) and not errors


def test_another_head_of_the_flow_has_other_weights(exported, window):
    flow, path = exported["flow"]
    index = next(i for i, stage in enumerate(flow.stages) if stage.name == "softmax")
    with window(1440, 900) as (page, errors, _):
        page.goto(path.as_uri())
        for _ in range(index):
            page.keyboard.press("ArrowRight")
        first = page.locator(".flow-bars").inner_text()
        page.locator(".flow-heads button").nth(1).click()
        assert page.locator(".flow-bars").inner_text() != first and not errors


def test_the_flow_is_painted_again_in_another_theme(exported, window):
    _, path = exported["flow"]
    pixels = "canvas => canvas.toDataURL()"
    with window(1440, 900, color_scheme="light") as (page, errors, _):
        page.goto(path.as_uri())
        page.locator(".flow-panel canvas").first.wait_for()
        page.wait_for_timeout(1500)  # the panel is revealed row by row
        light = page.locator(".flow-frame canvas").first.evaluate(pixels)
        page.get_by_role("button", name="dark colours").click()
        dark = page.locator(".flow-frame canvas").first.evaluate(pixels)
        page.get_by_role("button", name="light colours").click()
        assert light != dark and page.locator(".flow-frame canvas").first.evaluate(pixels) == light and not errors


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_cells_of_the_lens_list_their_most_probable_tokens(exported, window, width, scheme):
    lens, path = exported["lens"]
    with window(width, 900, color_scheme=scheme) as (page, errors, urls):
        page.goto(path.as_uri())
        rows = page.locator(".lens tr")
        assert rows.count() == len(lens.layers) + 2
        predicted, last = (rows.nth(i).locator("th:not([scope]), td").all_inner_texts() for i in (0, 1))
        assert predicted == last, "the last layer is the model"
        for layer in range(len(lens.layers)):
            button = rows.nth(len(lens.layers) - layer).locator("button").nth(0)
            button.focus()
            cell = lens.cells[layer][0]
            assert f"{cell.top[0][1]:.3f}" in page.locator(".lens-bars > div").first.inner_text()
        page.keyboard.press("ArrowRight")
        assert "position 2" in page.locator(".lens-detail p").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not errors and urls == [path.as_uri()]


@pytest.mark.parametrize("view", ["flow", "lens"])
def test_the_servers_page_keeps_the_place_in_the_address(served, window, view):
    with window(1440, 1000) as (page, errors, _):
        page.goto(f"{served.url}/#en-de/{view}?text=the+goat+sees")
        if view == "flow":
            page.locator(".flow-main h2").wait_for()
            for _ in range(3):
                page.keyboard.press("ArrowRight")
            before = shown_stage(page)
            assert "stage=4" in page.evaluate("location.hash")
        else:
            page.locator(".lens-detail p").wait_for()
            page.locator(".lens tr").nth(2).locator("button").nth(1).click()
            before = page.locator(".lens-detail p").inner_text()
            assert "token=2" in page.evaluate("location.hash")
        page.reload()
        shown = page.locator(".flow-main h2" if view == "flow" else ".lens-detail p")
        shown.wait_for()
        assert shown.inner_text() == before and not errors


def test_the_training_view_replays_what_was_learned(tiny_settings, window, tmp_path):
    short = {**tiny_settings["train"], "steps": 12, "evaluate_every": 4, "save_every": 12, "log_every": 2}
    run = train({**tiny_settings, "train": short}, tmp_path / "run", device="cpu", callbacks=[TrainingView()])
    for width, scheme in SIZES:
        with window(width, 900, color_scheme=scheme) as (page, errors, urls):
            page.goto((run.folder / PAGE).as_uri())
            assert page.locator(".training-bar output").inner_text() == "step 12"
            assert page.locator(".training-curve polyline").count() == 4
            page.locator(".training-bar input").fill("0")
            assert page.locator(".training-bar output").inner_text() == "step 4"
            assert page.locator(".training-examples dl").count() == 3
            assert page.locator(".training-layer canvas").count() == run.recipe.model.decoder_layers
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert not errors and len(urls) == 1
