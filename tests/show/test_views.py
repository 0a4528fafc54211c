"""Views of attention: they draw the given weights, in tiles where there are many, and words stay text."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from regard.show.figures.attention_maps import MAX_TILES, MAX_WEIGHTS, tile_attention, tile_weights
from regard.show.figures.beam_tree import ENDED, KEPT, PRUNED, BeamNode, beam_tree_figure, beam_tree_text, tree_rows
from regard.show.figures.curves import erasure_curves
from regard.show.figures.decoding_steps import (
    MAX_PAGE_KEYS,
    MAX_STEPS,
    generation_figure,
    generation_page,
    generation_text,
)
from regard.show.figures.figure_files import render
from regard.show.figures.head_views import (
    classical_scaling,
    entropy_figure,
    entropy_text,
    head_colours,
    head_distances,
    head_entropies,
    head_view,
    model_view,
)
from regard.show.figures.html_pages import PAGE_VIEWS, WEB, attention_page
from regard.show.figures.neuron_view import MAX_KEYS, neuron_figure, neuron_page, neuron_text
from regard.show.figures.teaching import position_figure

NASTY = "<img src=x onerror=alert(1)>"
NODES = [
    BeamNode(-1, 1, NASTY, -0.1, KEPT, best=True),
    BeamNode(-1, 1, "$x^2$", -1.0, KEPT),
    BeamNode(-1, 1, "c", -3.0, PRUNED),
    BeamNode(1, 2, "d", -1.1, KEPT),
    BeamNode(0, 2, "</s>", -0.2, ENDED, -0.15, best=True),
    BeamNode(0, 2, "e", -2.0, PRUNED),
]


def small_maps(L=2, H=3, T=5, S=4, seed=0):
    found = np.random.default_rng(seed).dirichlet(np.ones(S), (L, H, T))
    return tile_attention("self-attention", found, [NASTY, "$x^2$", "", *"abcdefg"][:T], list("vwxyz")[:S])


def large_maps(number=2000, L=2, H=2):
    def layers():
        for layer in range(L):
            weights = np.random.default_rng(layer).random((H, number, number), np.float32)
            yield weights / weights.sum(-1, keepdims=True)

    words = [NASTY, *(f"w{i}" for i in range(number - 1))]
    return tile_attention("self-attention", layers(), words, words, names=[str(i + 1) for i in range(L)])


FIGURES = {
    "lines": lambda found: head_view(found.weights[0], found.queries, found.keys, found.heads, title="a $title$"),
    "one token": lambda found: head_view(found.weights[0], found.queries, found.keys, found.heads, only=1, chosen=[1]),
    "model": lambda found: model_view(found, title="all"),
    "entropy": lambda found: entropy_figure(found),
    "tree": lambda found: beam_tree_figure(NODES, title=NASTY, note="beam 2"),
    "positions": lambda found: position_figure(np.sin(np.arange(50)[:, None] / np.arange(1, 17))),
}


@pytest.mark.parametrize("name", FIGURES)
def test_views_render_to_the_same_bytes_with_words_as_text(name):
    svg = render(FIGURES[name](small_maps()), "svg")
    assert svg == render(FIGURES[name](small_maps()), "svg")
    assert b"<img" not in svg and svg.count(b"<text") >= 3


@pytest.fixture(scope="module")
def thousands():
    return large_maps()


@pytest.mark.parametrize("name", ["lines", "model", "entropy"])
def test_thousands_of_tokens_are_drawn_in_tiles(name, thousands):
    assert max(thousands.weights.shape[2:]) <= MAX_TILES and thousands.tile > 1
    np.testing.assert_allclose(thousands.weights.sum(-1), 1, rtol=1e-4)  # rows are distributions still
    figure = FIGURES[name](thousands)
    assert max(figure.get_size_inches()) < 25 and len(render(figure, "svg")) < 4_000_000


def test_tile_is_the_mean_over_queries_of_the_sum_over_keys():
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (2, 5))
    found = tile_weights(weights, 3)
    assert found.shape == (2, 2, 3)
    np.testing.assert_allclose(found[1, 1, 2], weights[1, 3:, 6:].sum(-1).mean(), rtol=1e-6)
    np.testing.assert_allclose(found[0, 0, 1], weights[0, :3, 3:6].sum(-1).mean(), rtol=1e-6)


def test_head_view_lines_are_as_opaque_as_their_weight_and_the_heaviest_is_on_top():
    weights = np.zeros((2, 2, 3))
    weights[0, 0, 2], weights[1, 1, 0] = 0.9, 0.3
    segments = head_view(weights, list("ab"), list("xyz"), ["1", "2"]).axes[0].collections[0]
    assert [round(float(colour[3]), 3) for colour in segments.get_colors()] == [0.3, 0.9]
    assert [np.round(segment[:, 1]).tolist() for segment in segments.get_segments()] == [[2, 1], [0, 2]]
    (alone,) = head_view(weights, list("ab"), list("xyz"), ["1", "2"], chosen=[0]).axes[0].collections[0].get_segments()
    assert alone[:, 1].tolist() == [0.5, 2.5], "the lines of one head meet the middle of the words"
    assert len(set(head_colours(16))) == 16


@pytest.mark.parametrize("number", [2, 4, 12])
def test_heads_that_attend_alike_stay_visible(number):
    """No line of a head covers that of another, lines stay within their words, and each head has a bar beside each word."""
    weights = np.tile(np.eye(3), (number, 1, 1))
    axes = head_view(weights, list("abc"), list("xyz"), [str(i) for i in range(number)]).axes[0]
    ends = {tuple(np.round(segment[:, 1], 6)) for segment in axes.collections[0].get_segments()}
    assert len(ends) == 3 * number and all(0.1 < end % 1 < 0.9 for pair in ends for end in pair)
    (queries, keys) = (axes.collections[i].get_facecolor() for i in (2, 4))  # 1 and 3 are their background
    for bars in (queries, keys):
        assert len(bars) == 3 * number and len({tuple(bar[:3]) for bar in bars}) == number and (bars[:, 3] == 1).all()


def test_head_entropies_distances_and_scaling():
    even, sharp = np.full((1, 4, 8), 1 / 8), np.eye(8)[None, :4]
    assert head_entropies(even)[0] == pytest.approx(np.log(8)) and head_entropies(sharp)[0] == pytest.approx(0)
    apart = head_distances(np.concatenate([even, sharp, sharp, np.eye(8)[None, 4:]]))
    assert apart[1, 2] == pytest.approx(0, abs=1e-9) and apart[1, 3] == pytest.approx(np.log(2)) and (apart == apart.T).all()
    mixed = np.array([9 / 16, *[1 / 16] * 7])
    assert apart[0, 1] == pytest.approx(-(mixed * np.log(mixed)).sum() - np.log(8) / 2)
    square = np.array([[0, 0], [3, 0], [3, 4.0]])
    lengths = np.linalg.norm(square[:, None] - square, axis=-1)
    found = classical_scaling(lengths)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found, axis=-1), lengths, atol=1e-6)
    assert "layer 2" in entropy_text(small_maps())


def test_beam_tree_rows_are_unique_and_the_output_is_first():
    rows = tree_rows(NODES)
    assert len({(node.step, row) for node, row in zip(NODES, rows)}) == len(NODES)
    assert all(row == 0 for node, row in zip(NODES, rows) if node.best)
    lines = beam_tree_text(NODES).splitlines()
    assert len(lines) == len(NODES) and lines[1].startswith("  ► </s> -0.20 = -0.15") and lines[-1].startswith("× c")


@pytest.mark.parametrize("view", PAGE_VIEWS)
def test_attention_page_holds_the_weights_and_escapes_words(view):
    found = small_maps()
    text = attention_page([found], view=view, token=1, title=NASTY)
    assert text == attention_page([small_maps()], view=view, token=1, title=NASTY)
    assert "<img" not in text and not re.search(r'(?:src|href)\s*=\s*"', text) and "url(" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))["groups"][0]
    weights = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(found.weights.shape) / 255
    largest = np.array(data["largest"])[..., None, None]
    np.testing.assert_allclose(weights * largest, found.weights, atol=0.5 / 255 * largest.max() + 1e-6)
    assert data["queries"][0].startswith("<img src=x")


def test_neuron_view_shows_the_heaviest_keys_and_marks_masked_ones(make_neuron_view):
    svg = render(neuron_figure(make_neuron_view(), 1, title=NASTY), "svg")
    assert (
        svg == render(neuron_figure(make_neuron_view(), 1, title=NASTY), "svg")
        and b"<img" not in svg
        and svg.count(b"&lt;img") == 2
    )
    small, large = make_neuron_view(), make_neuron_view(queries=3, keys=2000)
    assert "−∞" in neuron_text(small, 1) and "−∞" not in neuron_text(small, 0) and not small.queries[0].left_out
    first = large.queries[1]
    assert len(first.keys) == MAX_KEYS and 0 not in first.keys and (np.diff(first.keys) > 0).all()
    assert f"the {MAX_KEYS} heaviest of 2,000 keys" in neuron_text(large, 1)
    assert max(neuron_figure(large, 1).get_size_inches()) < 25
    text = neuron_page(small, 2, "<svg></svg>", title=NASTY)
    assert text == neuron_page(make_neuron_view(), 2, "<svg></svg>", title=NASTY) and "<img" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))
    terms = np.frombuffer(base64.b64decode(data["queries"][2]["terms"]), np.uint8).reshape(5, 6) - 127.0
    np.testing.assert_allclose(
        terms / 127 * data["queries"][2]["reach"], small.queries[2].terms, atol=data["queries"][2]["reach"] / 254 + 1e-9
    )


def test_generation_figure_shows_a_window_of_steps_and_the_page_all_of_them(make_trace):
    small, large = make_trace(), make_trace(2000, 2000, own=0)
    svg = render(generation_figure(small, title=NASTY), "svg")
    assert svg == render(generation_figure(make_trace(), title=NASTY), "svg") and b"<img" not in svg and b"&lt;img" in svg
    assert b"alternatives" in svg and b"c 0.00" not in svg
    figure = generation_figure(large, first=1990)
    drawn = render(figure, "svg").decode()
    assert max(figure.get_size_inches()) < 25 and "steps 1941 to 2000 of 2,000; tiles of 28 keys" in drawn
    lines = generation_text(large, 100).splitlines()
    assert lines[0].split()[:3] == ["101", "w97", "0.50"] and len(lines) == MAX_STEPS + 2 and "steps 101 to 160" in lines[-1]
    text = generation_page(large, title=NASTY, first=7)
    assert text == generation_page(make_trace(2000, 2000, own=0), title=NASTY, first=7) and "<img" not in text
    assert text.count("<tr><td") == 2000 and len(text) < 3_000_000
    data = json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))
    assert data["weights"][1000][0][0] == 1000 and all(len(row) <= MAX_PAGE_KEYS for row in data["weights"])
    for key, weight in data["weights"][1000]:
        assert weight == pytest.approx(large.weights[1000, key], rel=1e-3)
    blind = replace(small, weights=np.array([np.zeros(5), *small.weights[1:]]))
    assert "no key" in generation_text(blind) and "no key" in generation_page(blind, title="a")


def test_erasure_curves_have_bands_where_there_are_intervals():
    def points(low, high):
        return [{"top": f"{part:.0%}", "score": part, "low": part - low, "high": part + high} for part in (0.01, 0.05, 0.5)]

    panels = {name: {f"{NASTY} {i}": points(0.1, 0.2) for i in range(9)} | {"random": points(0, 0)} for name in ("one", "other")}
    figure = erasure_curves(panels, baseline="random", title=NASTY)
    svg = render(figure, "svg")
    assert svg == render(erasure_curves(panels, baseline="random", title=NASTY), "svg") and b"<img" not in svg
    for axes in figure.axes:
        assert len(axes.collections) == 9 and [line.get_linestyle() for line in axes.lines].count("--") == 1
        np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.01, 0.05, 0.5])
        edges = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert edges.min() == pytest.approx(0.01 - 0.1) and edges.max() == pytest.approx(0.5 + 0.2)
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_attention_page_of_many_heads_is_small():
    weights = np.full((12, 200, 200), 1 / 200, np.float32)
    found = tile_attention(
        "self-attention", (weights for _ in range(12)), ["a"] * 200, ["b"] * 200, names=[str(i) for i in range(12)]
    )
    assert found.weights.size <= MAX_WEIGHTS and len(attention_page([found])) < 4_000_000


@pytest.mark.parametrize("path", sorted(WEB.glob("*.js")), ids=lambda path: path.name)
def test_page_scripts_never_insert_html(path):
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text("utf-8")
    )
