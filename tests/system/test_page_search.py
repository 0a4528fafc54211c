"""Search heads in a real browser: the table of heads, the sentences of one, and a hit opened in the view of all heads."""

import pytest

pytestmark = pytest.mark.system
LINES = ["the goat sees the cake", "A pig falls asleep."]
LONG = 60_000


@pytest.fixture(scope="module")
def served(listening, tiny_run):
    with listening({"en-de": tiny_run}) as server:
        yield server.url


@pytest.fixture
def opened(window, served):
    """Return a function that opens the search with some state; at the end there were no errors."""
    with window(1200) as (page, errors, _):

        def go(state=""):
            page.goto(f"{served}/#en-de/search{state}")
            page.locator(".hits, .found .muted").first.wait_for(timeout=LONG)
            page.locator(".form:not([aria-busy]):not(.stale)").wait_for(timeout=LONG)
            return page

        yield go
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200
        assert errors == []


def post(page, body):
    script = """async body => (await fetch("v1/search", { method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body) })).json()"""
    return page.evaluate(script, body)


def test_pasted_lines_are_searched_and_the_hits_of_a_head_are_those_of_the_api(opened):
    page = opened("?number=3")
    page.get_by_label("Sentences, one a line").fill("\n".join(LINES))
    page.get_by_role("button", name="Search").click()
    page.locator(".result .hint", has_text="over 2 sentences").wait_for(timeout=LONG)
    page.locator(".head-table").get_by_role("button", name="encoder 2.2").click()
    found = post(page, {"model": "en-de", "text": LINES})
    head = next(one for one in found["heads"] if one["name"] == page.locator(".found h2").inner_text())
    assert head["name"] == "self-attention of the encoder, layer 2, head 2"
    shown = page.locator(".hits li").all()
    assert len(shown) == len(head["hits"]) == 2
    for row, hit in zip(shown, head["hits"]):
        queries, keys = found["tokens"]["encoder"][hit["sentence"]]
        assert row.locator(".pair em").all_inner_texts() == [queries[hit["query"]], keys[hit["key"]]]
        assert row.locator("b").inner_text() == f"{hit['weight']:.2f}"
    page.reload()
    page.locator(".hits").wait_for(timeout=LONG)
    assert page.locator(".found h2").inner_text() == head["name"] and page.locator(".hits li").count() == 2


def test_a_hit_opens_its_sentence_with_that_head_and_token(opened):
    page = opened("?kind=encoder&layer=2&head=1&lines=" + "%0A".join(LINES))
    pair = page.locator(".hits li").first.locator(".pair em").all_inner_texts()
    page.locator(".hits button").first.click()
    page.locator(".lines .word[aria-pressed=true]").wait_for(timeout=LONG)
    assert page.get_by_role("tab", name="Attention").get_attribute("aria-selected") == "true"
    assert page.locator(".result h2").first.inner_text() == "Layer 2, head 1"
    assert page.get_by_label("attention", exact=True).input_value() == "encoder"
    assert page.locator(".lines .word[aria-pressed=true]").inner_text() == pair[0]
    attended = page.locator(".tab-panel .readout").inner_text()
    assert attended.startswith(f"{pair[0]} attends to ") and f"{pair[1]} " in attended
    page.go_back()
    page.locator(".hits").wait_for(timeout=LONG)


def test_heads_are_sorted_by_a_relation(opened):
    page = opened("?lines=" + "%0A".join(LINES))
    heading = page.locator("th", has=page.get_by_role("button", name="first token"))
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending" and "sort=first" in page.url
    column = 1 + page.locator("thead th").all_inner_texts().index("first token")
    numbers = [float(text) for text in page.locator(f".head-table tbody tr > :nth-child({column})").all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) > 1
