"""Change the model or its input and watch the answer change: heads off, words edited, another model, live sliders."""

import re

import pytest

pytestmark = pytest.mark.system
SENTENCE = "The goat drank because it was thirsty."


def answers(page):
    """Return the words and the probability of both answers."""
    page.locator(".answer.waiting").wait_for(state="detached")
    texts = page.locator(".answer .text").all_inner_texts()
    return list(zip(texts, page.locator(".answer .figure b").all_inner_texts()))


def heads_off(page):
    return page.locator(".switches button[aria-pressed=false]").count()


def test_switching_a_head_off_changes_the_answer_and_undo_restores_it(opened_stub):
    page = opened_stub(f"#demo/whatif?text={SENTENCE}")
    before, same = answers(page)
    assert before == same
    page.get_by_role("button", name="layer 2, head 3").click()
    page.get_by_text("Another answer").wait_for()
    unchanged, after = answers(page)
    assert unchanged == before and "es durstig" in after[0] and float(after[1]) < float(before[1])
    assert page.locator("mark.changed").all_inner_texts() == ["sie", "es"] and heads_off(page) == 1
    assert "off=cross.2.3" in page.url
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("The same answer").wait_for()
    assert answers(page)[1] == before and heads_off(page) == 0


def test_whole_layer_and_all_but_one_are_one_click_each(opened_stub):
    page = opened_stub(f"#demo/whatif?text={SENTENCE}")
    total = page.locator(".switches button").count()
    heads = len(
        re.findall(r"layer 1, head", " ".join(page.locator(".switches button").evaluate_all("all => all.map(b => b.ariaLabel)")))
    )
    page.get_by_role("button", name="its layer").click()
    page.get_by_role("button", name="layer 1, head 1").click()
    assert heads_off(page) == heads
    page.get_by_role("button", name="all but it").click()
    page.get_by_role("button", name="layer 2, head 2").click()
    assert heads_off(page) == total - 1
    page.get_by_role("button", name="All on").click()
    assert heads_off(page) == 0 and "off=" not in page.url


def test_heads_that_are_off_survive_a_reload(opened_stub, settled):
    page = opened_stub(f"#demo/whatif?text={SENTENCE}&off=cross.2.3,cross.1.1")
    page.get_by_text("Another answer").wait_for()
    page.reload()
    settled(page)
    page.get_by_text("Another answer").wait_for()
    assert heads_off(page) == 2


def test_edited_word_shows_both_answers_side_by_side(opened_stub, settled):
    page = opened_stub(f"#demo/whatif?text={SENTENCE}")
    page.get_by_label("Changed input").fill(SENTENCE.replace("goat", "dog"))
    page.get_by_text("Another answer").wait_for()
    (before, _), (after, _) = answers(page)
    assert "Ziege" in before and "Hund" in after and page.locator("mark.changed").all_inner_texts() == ["Ziege", "Hund"]
    page.reload()
    settled(page)
    assert page.get_by_label("Changed input").input_value() == SENTENCE.replace("goat", "dog")


def test_temperature_and_top_k_reshape_the_next_token_at_once(opened_stub):
    page = opened_stub("#writer/generate?temperature=1&top_p=1")

    def numbers():
        return [float(text) for text in page.locator(".live li:visible .number").all_inner_texts()]

    page.locator(".live li:visible").first.wait_for()
    assert numbers() == [0.5, 0.25, 0.13, 0.06]
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.locator(".slider", has_text="top-k").locator("input").fill("2")
    assert numbers() == [0.67, 0.33, 0, 0]
    page.locator(".slider", has_text="temperature").locator("input").fill("0.5")
    assert numbers() == [0.8, 0.2, 0, 0]
    page.locator(".slider", has_text="temperature").locator("input").fill("0")
    assert numbers() == [1, 0, 0, 0] and requests == []


def test_chosen_next_token_is_appended_to_the_prompt(opened_stub, settled):
    page = opened_stub("#writer/generate?text=The")
    page.locator(".live button", has_text="dog").click()
    settled(page)
    assert page.locator("textarea").input_value() == "The dog"
