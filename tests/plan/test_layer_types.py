"""Layer types: counts equal torch's and table 1's, path lengths are those of signals, timing is fair."""

import json
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard import cli
from regard.errors import UserError
from regard.plan import compare_layer_types, layer_types, render_text
from regard.plan.layer_types import LAYER_TYPES, LayerComparison, LayerSizes, LayerTiming
from regard.plan.throughput import fastest_thread_count, time_interleaved
from regard.show.figures.figure_files import render
from regard.studies.layer_timing import plot_layer_types

LAYERS_BY_NAME = {kind.name: kind for kind in LAYER_TYPES}
odd = st.sampled_from([3, 5, 7, 15])


# counts


@pytest.mark.parametrize("name", LAYERS_BY_NAME)
@given(
    n=st.integers(1, 150),
    d=st.sampled_from([4, 8, 12]),
    k=odd,
    r=odd,
    heads=st.sampled_from([1, 2]),
    cell=st.sampled_from(["rnn", "gru", "lstm"]),
)
def test_exact_macs_equal_torch_flop_counter(name, n, d, k, r, heads, cell):
    """Exactly, without the fused kernels of attention and LSTM, whose products torch does not count."""
    sizes, kind = LayerSizes(n, d, k, r, heads, cell), LAYERS_BY_NAME[name]
    layer = kind.build(sizes)
    with (
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),
        FlopCounterMode(display=False) as counter,
    ):
        assert layer(torch.randn(1, n, d)).shape == (1, n, d)
    assert 2 * kind.exact(sizes) == counter.get_total_flops()


TABLE_1 = {"self-attention": (2, 1), "recurrent": (1, 2), "convolutional": (1, 2), "restricted attention": (1, 1)}


@pytest.mark.parametrize("name, powers", TABLE_1.items())
@given(n=st.integers(1, 999), d=st.integers(1, 999).map(lambda d: 4 * d), k=odd, r=odd)
def test_core_macs_are_those_of_table_1(name, powers, n, d, k, r):
    sizes = LayerSizes(n, d, k, r)
    factor = {"convolutional": k, "restricted attention": r}.get(name, 1)
    assert LAYERS_BY_NAME[name].core(sizes) == factor * n ** powers[0] * d ** powers[1]


@pytest.mark.parametrize("name", ["self-attention", "convolutional", "restricted attention"])
@given(n=st.integers(2, 40), k=odd, r=odd)
def test_path_length_is_the_number_of_layers_a_signal_needs(name, n, k, r):
    """The first position influences the last through as many stacked layers as the path length, and not through fewer."""
    sizes, kind = LayerSizes(n, 4, k, r, heads=1), LAYERS_BY_NAME[name]
    torch.set_default_dtype(torch.float64)
    try:
        stack = [kind.build(sizes) for _ in range(kind.path(sizes))]
        x = torch.randn(1, n, 4, requires_grad=True)
    finally:
        torch.set_default_dtype(torch.float32)
    for depth in (len(stack) - 1, len(stack)):
        y = x * 1.0
        for layer in stack[:depth]:
            y = layer(y)
        (gradient,) = torch.autograd.grad(y[0, -1].sum(), x)
        assert gradient[0, 0].ne(0).any() == (depth == len(stack))


def test_recurrent_layer_is_sequential():
    """One layer connects all positions, step by step: later inputs do not influence earlier outputs."""
    sizes, kind = LayerSizes(9, 4), LAYERS_BY_NAME["recurrent"]
    x = torch.randn(1, 9, 4, requires_grad=True)
    out = kind.build(sizes)(x)
    for i in range(9):
        (gradient,) = torch.autograd.grad(out[0, i].sum(), x, retain_graph=True)
        assert torch.equal(gradient[0].ne(0).any(-1), torch.arange(9) <= i)
    assert kind.path(sizes) == kind.sequential(sizes) == 9


# timing


def test_timed_calls_are_interleaved():
    calls_made = []
    calls = [lambda name=name: calls_made.append(name) for name in "abc"]
    found = time_interleaved(calls, torch.device("cpu"), repeats=5, min_seconds=0.0)
    assert [len(times) for times in found] == [5, 5, 5] and all(seconds > 0 for times in found for seconds in times)
    assert "".join(calls_made).endswith("abc" * 5)


def test_short_calls_are_repeated_and_long_sessions_end():
    calls = []
    [times] = time_interleaved([lambda: calls.append(0)], torch.device("cpu"), repeats=50, min_seconds=1e-3, max_seconds=0.0)
    assert len(times) == 3 and len(calls) > 30


def test_fastest_thread_count_is_used_and_restored():
    """One thread or all, whichever is faster; afterwards the number is restored."""

    def wait(together: float):
        time.sleep(together if torch.get_num_threads() > 1 else 5e-3)

    torch.set_num_threads(2)
    try:
        for together, best in ((2e-2, 1), (0.0, 2)):
            with fastest_thread_count(partial(wait, together)) as threads:
                assert threads == best == torch.get_num_threads()
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def with_timings(seconds) -> LayerComparison:
    """A comparison whose timings are a function of the layer type and the sizes."""
    sizes = LayerSizes()
    over = {"n": [replace(sizes, n=n) for n in (64, 128, 256, 512)], "d": [replace(sizes, d=d) for d in (64, 128, 256)]}
    return LayerComparison(
        sizes,
        {
            axis: [
                LayerTiming(kind.name, s.n, s.d, [seconds(kind, s) * wobble for wobble in (1.0, 1.1, 0.9)])
                for s in points
                for kind in LAYER_TYPES
            ]
            for axis, points in over.items()
        },
        "a clock",
    )


def test_exponents_of_ideal_timings_equal_the_counted_ones():
    found = with_timings(lambda kind, sizes: 1e-9 * kind.exact(sizes))
    for exponent in found.exponents:
        assert exponent.measured == pytest.approx([exponent.exact] * 3, abs=1e-6)
        assert exponent.core == pytest.approx(TABLE_1[exponent.layer][exponent.over == "d"], abs=1e-6)
    assert not any("overhead" in note or "dominated" in note for note in found.notes)
    assert [exponent.sizes for exponent in found.exponents if exponent.over == "n"] == [[128, 256, 512]] * 4


def test_deviating_exponents_are_noted():
    found = with_timings(lambda kind, sizes: 1e-3 if kind.name == "recurrent" else 1e-9 * kind.exact(sizes))
    assert "recurrent over n (0.00, counted 1.00); recurrent over d (0.00, counted 2.00)." in found.notes[-1]
    assert "self-attention" not in found.notes[-1] and "dominated" in found.notes[-1]


# output


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setitem(layer_types.TIMING_GRID, "cpu", ([8, 16], [8, 16]))


def test_comparison_renders_as_text_json_and_figure():
    found = compare_layer_types(LayerSizes(n=16, d=8), n=[8, 16, 32], d=[8, 16], repeats=3)
    assert {(t.n, t.d) for t in found.over["n"]} == {(8, 8), (16, 8), (32, 8)} and len(found.over["d"]) == 2 * len(LAYER_TYPES)
    page = render_text(found)
    assert max(map(len, page.splitlines())) <= 100
    for kind in LAYER_TYPES:
        assert f"{kind.core(found.sizes):,}" in page and f"{kind.exact(found.sizes):,}" in page
    as_json = json.loads(json.dumps(found.to_json()))
    assert [row["exact_macs"] for row in as_json["layers"]] == [kind.exact(found.sizes) for kind in LAYER_TYPES]
    assert len(as_json["times"]) == 5 * len(LAYER_TYPES) and all(len(row["seconds"]) == 3 for row in as_json["times"])
    assert render(plot_layer_types(found), "svg") == render(plot_layer_types(found), "svg")


def test_without_timing_there_is_only_table_1():
    found = compare_layer_types(measure=False)
    assert found.exponents == [] and "Milliseconds" not in render_text(found) and "67,108,864" in render_text(found)


@pytest.mark.parametrize("wrong", [dict(k=4), dict(k=1), dict(r=2), dict(n=0), dict(d=6), dict(cell="elman")])
def test_invalid_sizes_raise_an_error(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        compare_layer_types(LayerSizes(**wrong), measure=False)


def test_exponents_need_two_sizes():
    with pytest.raises(UserError, match="at least two sizes"):
        compare_layer_types(n=[64])


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["regard", "plan", *map(str, arguments)])
    try:
        cli.main()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    return status, capsys.readouterr()


def test_plan_layers_command(monkeypatch, capsys, tmp_path, quick):
    status, output = command(monkeypatch, capsys, "--layers", "--device", "cpu", "--out", tmp_path / "layers.svg")
    assert status == 0 and "restricted attention" in output.out and "timing" in output.err
    assert "self-attention" in (tmp_path / "layers.svg").read_text(encoding="utf-8")
    status, output = command(monkeypatch, capsys, "--layers", "--device", "cpu", "--json")
    assert status == 0 and json.loads(output.out)["layers"][2]["layer"] == "convolutional"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--layers", "--out", "a.bmp"], "use .svg, .png or .pdf"),
        ([], "--layers"),
        (["base", "--out", "a.svg"], "--layers"),
        (["base", "--layers"], "one or the other"),
    ],
)
def test_invalid_options_print_one_line_before_timing(monkeypatch, capsys, arguments, message):
    status, output = command(monkeypatch, capsys, *arguments)
    assert status == 2 and message in output.err and output.err.count("\n") == 1
