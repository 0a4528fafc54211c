"""What the page shows is in its address: a reload, Back, a shared link and another tab keep it."""

import re

import pytest

pytestmark = pytest.mark.system
SENTENCE = "The goat drank because it was thirsty."


@pytest.fixture
def translate(settled):
    """Return a function that translates a text on the page."""

    def submit(page, text):
        page.locator("textarea").fill(text)
        page.keyboard.press("Control+Enter")
        settled(page)

    return submit


def test_page_opens_with_an_example_that_is_worked_and_drawn(opened_stub):
    page = opened_stub()
    assert page.locator(".target .word").count() > 3 and page.locator("canvas.map").is_visible()
    assert page.locator("textarea").input_value()
    page.locator(".faithfulness table").wait_for()


def test_reload_and_shared_link_keep_text_options_panel_and_token(opened_stub, settled, translate):
    page = opened_stub("#demo/translate")
    page.get_by_text("Options").click()
    page.get_by_label("beam size").fill("3")
    translate(page, SENTENCE)
    page.locator(".target .word", has_text="sie").click()
    page.get_by_role("tab", name="Beam tree").click()
    address = page.url
    for revisit in (page.reload, lambda: (page.goto("about:blank"), page.goto(address))):
        revisit()
        settled(page)
        assert page.url == address
        assert page.locator("textarea").input_value() == SENTENCE
        assert page.get_by_label("beam size").input_value() == "3" and page.get_by_label("beam size").is_visible()
        assert page.locator(".target [aria-pressed=true]").inner_text() == "sie"
        assert page.get_by_role("tab", name="Beam tree").get_attribute("aria-selected") == "true"


def test_layer_head_and_token_of_the_attention_view_are_in_the_address(opened_stub, settled):
    page = opened_stub("#demo/attention")
    page.get_by_role("button", name="layer 2, head 3").click()
    page.locator(".lines .column").first.locator(".word").nth(2).click()
    page.reload()
    settled(page)
    assert page.locator(".result h2").first.inner_text() == "Layer 2, head 3"
    assert page.locator(".lines [aria-pressed=true]").count() == 1
    assert re.search(r"layer=2&head=3.*token=3", page.url)


def test_back_returns_to_the_sentence_before(opened_stub, settled, translate):
    page = opened_stub("#demo/translate")
    translate(page, SENTENCE)
    translate(page, "The cat sleeps.")
    page.go_back()
    settled(page)
    assert page.locator("textarea").input_value() == SENTENCE
    page.go_forward()
    settled(page)
    assert page.locator("textarea").input_value() == "The cat sleeps."


def test_another_tab_keeps_the_sentence_and_the_first_tab_its_options(opened_stub, settled, translate):
    page = opened_stub("#demo/translate")
    page.get_by_text("Options").click()
    page.get_by_label("beam size").fill("2")
    translate(page, SENTENCE)
    page.get_by_role("tab", name="Attention").click()
    settled(page)
    assert page.locator("textarea").input_value() == SENTENCE
    page.get_by_role("tab", name="Translate").click()
    settled(page)
    assert page.locator("textarea").input_value() == SENTENCE and page.get_by_label("beam size").input_value() == "2"


def test_another_model_opens_with_its_own_example_unless_a_sentence_was_entered(opened_stub, settled, translate):
    page = opened_stub("#demo/attention")
    example = page.locator("textarea").input_value()
    page.locator("#model").select_option("bert")
    settled(page)
    assert "text=" in page.url
    page.locator("#model").select_option("demo")
    settled(page)
    assert page.locator("textarea").input_value() == example
    translate(page, SENTENCE)
    page.locator("#model").select_option("writer")
    settled(page)
    assert page.locator("textarea").input_value() == SENTENCE


def test_what_is_shown_can_be_copied_as_link_command_and_python(opened_stub, translate):
    page = opened_stub("#demo/translate?text=It%27s+a+goat.&beam=3")
    copied = {}
    for name in ("Copy link", "Copy as command", "Copy as Python"):
        page.get_by_role("button", name=name).click()
        page.get_by_role("button", name="Copied").last.wait_for()
        copied[name] = page.evaluate("navigator.clipboard.readText()")
    assert copied["Copy link"] == page.url
    assert copied["Copy as command"] == "regard translate demo 'It'\\''s a goat.' --beam 3"
    assert 'run = regard.load("demo")\nresult = run.translate("It\'s a goat.", beam=3)' in copied["Copy as Python"]


def test_changed_inputs_dim_the_result_that_no_longer_belongs_to_them(opened_stub, settled):
    page = opened_stub("#demo/translate")
    opacity = "node => Number(getComputedStyle(node).opacity)"
    page.locator("textarea").press_sequentially("x")
    page.wait_for_timeout(300)
    assert page.locator(".result").evaluate(opacity) < 0.6 and page.locator(".faithfulness").evaluate(opacity) < 0.6
    page.keyboard.press("Control+Enter")
    settled(page)
    page.wait_for_timeout(300)
    assert page.locator(".result").evaluate(opacity) == 1
