"""Watching changes no output and records what the model used; editing changes the chosen weights only."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.core import attend, attention_weights
from regard.attention.edit import edit
from regard.attention.interception import Interceptor
from regard.attention.modules import attention_modules
from regard.attention.watch import watch
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer
from regard.recipe import (
    DecoderModel,
    EncoderClassifierModel,
    EncoderModel,
    PositionSettings,
    RecurrentDecoderModel,
    RecurrentEncoderModel,
    RecurrentModel,
    TransformerModel,
    UniversalModel,
)
from regard.tasks import find_task

KINDS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


def tiny(kind="sinusoidal", **settings):
    model = TransformerModel(preset="tiny", width=16, heads=2, feed_forward=32, positions=PositionSettings(kind=kind), **settings)
    return Transformer(model, 30, 30).eval()


@pytest.fixture
def inputs():
    return torch.randint(4, 30, (3, 7)), torch.tensor([7, 5, 2]), torch.randint(4, 30, (3, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_watched_output_equals_unwatched_bit_for_bit(kind, inputs):
    model = tiny(kind)
    plain = model(*inputs)
    with watch(model) as seen:
        watched = model(*inputs)
    assert torch.equal(plain, watched)
    assert torch.equal(plain, model(*inputs)), "the hooks are removed"
    assert len(seen.names()) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_weights_times_values_equal_the_fused_output(kind, inputs, monkeypatch):
    """In every module, also when only a few rows are computed at a time."""
    monkeypatch.setattr("regard.attention.lazy_maps.MIN_WORKSPACE", 200)
    model = tiny(kind, key_value_heads=1)
    mixed = {}
    for name, module in attention_modules(model).items():
        module.register_forward_hook(lambda module, args, output, name=name: mixed.update({name: (args[2], output)}))
    with watch(model, values=True) as seen:
        model(*inputs)
    for name in seen.names():
        v, output = mixed[name]
        assert torch.equal(seen.values[name][0], v)
        torch.testing.assert_close(seen[name] @ v.repeat_interleave(2, 1), output, atol=1e-6, rtol=1e-5)


def test_choosing_layers_heads_and_kinds(inputs):
    model = tiny()
    with watch(model, layers=[1], heads=[0], kinds="cross") as seen:
        model(*inputs)
    assert seen.names() == ["decoder.blocks.1.cross_attention"]
    assert seen[seen.names()[0]].shape == (3, 1, 6, 7)
    with watch(model, kinds="cross") as seen:
        model(*inputs)
    assert seen.stack().shape == (2, 3, 2, 6, 7)
    assert seen.stack()[:, 1, :, :, 5:].eq(0).all(), "padding has no weight"


def test_unknown_names_layers_heads_and_rows_are_rejected(inputs):
    model = tiny()
    with watch(model, kinds="decoder.*self", rows=[0, -1]) as seen:
        model(*inputs)
    assert seen.names() == ["decoder.blocks.0.self_attention", "decoder.blocks.1.self_attention"]
    assert seen.stack().shape == (2, 3, 2, 2, 6)
    for wrong, problem in [
        ({"layers": [7]}, "0 to 1"),
        ({"kinds": "("}, "not a regular expression"),
        ({"heads": [2]}, "has 2"),
        ({"rows": [7]}, "has 7 queries"),
        ({"budget": "much"}, "budget"),
        ({"keep": "all"}, "keep"),
    ]:
        with pytest.raises(UserError, match=problem), watch(model, **wrong):
            model(*inputs)
    with pytest.raises(UserError, match="not watched"):
        seen["encoder"]
    assert not any(module._forward_hooks for module in model.modules()), "the hooks are removed"


BLOCK = dict(width=16, heads=4, feed_forward=16, max_length=32)
READ, LENGTHS = torch.randint(4, 13, (3, 7), generator=torch.Generator().manual_seed(0)), torch.tensor([7, 5, 2])
FAMILIES = {
    "bert": ("masked", EncoderModel(kind="transformer", layers=2, **BLOCK), (13,), (READ, LENGTHS)),
    "classifier": ("classify", EncoderClassifierModel(kind="transformer", layers=2, **BLOCK), (13, 3), (READ, LENGTHS)),
    "gpt": ("language", DecoderModel(kind="transformer", layers=3, window=2, **BLOCK), (13,), (READ,)),
    "llama": (
        "language",
        DecoderModel(
            kind="transformer",
            layers=2,
            key_value_heads=2,
            norm="rms",
            activation="swiglu",
            positions={"kind": "rotary"},
            **BLOCK,
        ),
        (13,),
        (READ,),
    ),
    "t5": (
        "span-corruption",
        TransformerModel(preset="tiny", positions=PositionSettings(kind="relative"), scale_scores=False, **BLOCK),
        (13, 13),
        (READ, LENGTHS, READ),
    ),
    "universal": (
        "translate",
        UniversalModel(kind="universal", encoder_layers=2, decoder_layers=2, **BLOCK),
        (13, 13),
        (READ, LENGTHS, READ),
    ),
    "bahdanau": (
        "translate",
        RecurrentModel(kind="recurrent", cell="gru", width=8, attention="additive", decoder="bahdanau"),
        (13, 13),
        (READ, LENGTHS, READ),
    ),
    "luong": (
        "translate",
        RecurrentModel(kind="recurrent", cell="lstm", width=8, attention="general", decoder="luong"),
        (13, 13),
        (READ, LENGTHS, READ),
    ),
    "recurrent language": ("language", RecurrentDecoderModel(cell="gru", layers=2, width=8, attention="cosine"), (13,), (READ,)),
    "tagger": ("tag", RecurrentEncoderModel(cell="lstm", layers=1, width=8, attention="scaled"), (13, 3), (READ, LENGTHS)),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    task, settings, sizes, inputs = FAMILIES[request.param]
    return find_task(task, settings.kind).models[settings.kind](settings, *sizes).eval(), inputs


@pytest.mark.parametrize("heads, rows", [(None, None), ([0], [-1, 0])])
def test_recorded_scores_are_sums_of_terms_and_weights_their_softmax(family, heads, rows):
    """With every bias and mask, the recorded scores are those that the model used."""
    model, inputs = family
    steps = any("cross_attention" in name and "blocks" not in name for name in attention_modules(model))  # one call per token
    with torch.no_grad(), watch(model, heads=heads, rows=None if steps else rows, queries=True) as seen:
        watched = model(*inputs)
    with torch.no_grad():
        assert torch.equal(watched, model(*inputs))
    for name, module in attention_modules(model).items():
        for q, k, scores, recorded in zip(seen.queries[name], seen.keys[name], seen.scores[name], seen.recorded(name)):
            torch.testing.assert_close(scores.softmax(-1).nan_to_num(), recorded.parts["weights"], atol=1e-6, rtol=0)
            terms = module.decomposable_score.terms(q, k)
            assert terms.shape == (*scores.shape, q.size(-1)) and module.decomposable_score.formula(q.size(-1))
            added = (scores - terms.sum(-1)).where(scores.isfinite(), 0)
            assert added.abs().max() < 1e-5 or "Relative" in str(model)
    with watch(model, queries=True, budget=900) as seen:
        model(*inputs)
    assert any("queries" in name for name in seen.dropped) and seen.nbytes <= 900


@pytest.mark.parametrize("kind", ["rotary", "alibi", "relative", "none"])
def test_recorded_scores_contain_the_position_bias(kind, inputs):
    model = tiny(kind)
    with torch.no_grad(), watch(model, kinds="encoder", queries=True) as seen:
        model(*inputs)
        bias = model.encoder.positions.bias(torch.arange(7), torch.arange(7))
    name = "encoder.blocks.0.self_attention"
    q, k, scores = (kept[name][0] for kept in (seen.queries, seen.keys, seen.scores))
    added = scores - attention_modules(model)[name].decomposable_score.terms(q, k).sum(-1)
    expected = torch.zeros(2, 7, 7) if bias is None else bias
    torch.testing.assert_close(added[0], expected, atol=1e-5, rtol=0)


class Operations(TorchDispatchMode):
    """The operations that a pass dispatches, with the shapes of their inputs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, *(tuple(x.shape) for x in args if isinstance(x, torch.Tensor))))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_watching_one_module_adds_the_operations_of_its_record_and_changes_no_other(family):
    model, inputs = family
    name = list(attention_modules(model))[-1]
    with Operations() as plain:
        expected = model(*inputs)
    with watch(model, kinds=f"^{name}$") as seen, Operations() as watched:
        found = model(*inputs)
    assert torch.equal(found, expected)
    operations = iter(watched.seen)
    assert all(operation in operations for operation in plain.seen), "all of them, in the same order"
    assert len(watched.seen) - len(plain.seen) <= 40 * len(seen.recorded(name))


@torch.no_grad()
def test_while_our_own_model_is_watched_the_function_mode_sees_its_attention_alone(family, monkeypatch):
    """Elsewhere it would cost the host more for each attribute of a tensor than a GPU takes for a small kernel."""
    model, inputs = family
    functions, dispatch = [], Interceptor.__torch_function__

    def count(self, func, types, args=(), kwargs=None):
        functions.append(func)
        return dispatch(self, func, types, args, kwargs)

    monkeypatch.setattr(Interceptor, "__torch_function__", count)
    with watch(model) as seen:
        model(*inputs)
    assert functions == [attend] * sum(len(seen.recorded(name)) for name in seen.names())


@torch.no_grad()
def test_an_interrupted_pass_leaves_no_function_mode_behind(inputs):
    model = tiny()

    def interrupt(module, args, output):
        raise KeyboardInterrupt

    hook = next(iter(attention_modules(model).values())).register_forward_hook(interrupt)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), watch(model):
            model(*inputs)
        assert not has_torch_function((inputs[0],))
    hook.remove()
    with watch(model) as seen:
        model(*inputs)
    assert len(seen.names()) == 6


class Mixed(nn.Module):
    """A model of one's own around ours, which also attends elsewhere."""

    def __init__(self):
        super().__init__()
        self.inner = find_task("masked", "transformer").models["transformer"](FAMILIES["bert"][1], 13)

    def forward(self, source, lengths):
        x = self.inner.encoder(source, lengths)[:, None]
        return F.scaled_dot_product_attention(x, x, x)


@torch.no_grad()
def test_attention_around_our_own_modules_is_seen_too():
    model = Mixed().eval()
    with watch(model) as seen:
        model(READ, LENGTHS)
    assert seen.names() == [f"inner.encoder.stack.blocks.{n}.self_attention" for n in range(2)] + ["Mixed"]


@pytest.mark.parametrize("options", [{}, {"budget": 900}, {"budget": "1MB", "states": True, "gradients": True}], ids=str)
def test_watching_changes_no_output_or_gradient_of_any_family(family, options):
    """To the bit; and the recorded weights equal those of the written-out path."""
    model, inputs = family
    written = {}

    def remember(name):
        def hook(module, args, given, output):
            weights = attention_weights(args[0], args[1], score=module.score, scale=module.scale, **given)
            written.setdefault(name, []).append(weights.detach())

        return hook

    plain = model(*inputs)
    plain.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    handles = [
        module.register_forward_hook(remember(name), with_kwargs=True) for name, module in attention_modules(model).items()
    ]
    with watch(model, **options) as seen:
        watched = model(*inputs)
        watched.square().sum().backward()
    for handle in handles:
        handle.remove()
    assert torch.equal(watched, plain)
    again = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))
    assert seen.names() == list(attention_modules(model))
    for name, calls in written.items():
        for recorded, weights in zip(seen.recorded(name), calls, strict=True):
            assert recorded.shape == weights.shape
            if recorded.kind == "weights":
                torch.testing.assert_close(recorded.parts["weights"], weights, atol=1e-6, rtol=0)
    assert options.get("budget") == 900 or not seen.dropped


def test_recorded_gradients_equal_those_of_the_written_out_path(family):
    """dL/dW = dO·Vᵀ from the fused kernels equals autograd through written-out weights."""
    model, inputs = family
    leaves = {}

    def change(name, weights):
        leaves.setdefault(name, []).append(weights)
        weights.retain_grad()
        return weights

    with edit(model, change):
        model(*inputs).square().sum().backward()
    with watch(model, gradients=True, heads=[0]) as seen:
        model(*inputs).square().sum().backward()
    for name, calls in leaves.items():
        expected = torch.cat([weights.grad[:, :1] for weights in calls], dim=2)
        torch.testing.assert_close(seen.gradient(name), expected, atol=1e-5, rtol=1e-4)
        assert expected.abs().max() > 0
    with torch.no_grad(), watch(model, gradients=True) as without:
        model(*inputs)
    with pytest.raises(UserError, match="no gradients"):
        without.gradient(without.names()[0])


def test_recorded_states_equal_hidden_states(family):
    model, inputs = family
    with torch.no_grad(), watch(model, states=True) as seen:
        model(*inputs)
    if hasattr(model, "hidden_states"):
        layers = model.hidden_states(*(inputs[:2] if len(inputs) > 1 else (*inputs, LENGTHS)))[1:]
        states = [calls[0] for name, calls in seen.states.items() if not name.startswith("decoder") or len(inputs) == 1]
        assert len(states) == len(layers)
        real = LENGTHS[:, None] > torch.arange(7)
        if any("blocks" in name for name in seen.states):
            layers, states = layers[:-1], states[:-1]  # hidden_states() normalises the last one
        if not isinstance(model, UniversalTransformer):  # where some tokens have halted
            for state, layer in zip(states, layers):
                torch.testing.assert_close(state[real], layer[real])
    assert all(state.shape[:2] == (3, 7) for name, (state, *_) in seen.states.items() if not name.startswith("decoder.cells"))


def test_compiled_models_run_eagerly_while_watched(inputs):
    """A compiled callable would ignore hooks that are registered later."""
    model = tiny()
    plain, compiled = model(*inputs), torch.compile(model, backend="eager")
    before = compiled(*inputs)
    for target in (model, compiled):
        with watch(target) as seen:
            assert torch.equal(compiled(*inputs), plain)
        assert seen.names() == list(attention_modules(model)) == list(attention_modules(compiled))
        with edit(target, lambda name, weights: torch.zeros_like(weights)):
            assert not torch.allclose(compiled(*inputs), plain)
    torch.testing.assert_close(compiled(*inputs), before)


def test_watches_of_two_threads_leave_compilation_as_it_was(inputs):
    """The stance of the compiler is one for all threads: watches that overlap must not restore each other's."""
    model, graphs = tiny(), []
    compiled = torch.compile(model, backend=lambda graph, example: graphs.append(graph) or graph.forward)
    begun, overlapped, ended = (threading.Event() for _ in range(3))

    def first():
        with watch(model):
            begun.set()
            overlapped.wait(60)
            model(*inputs)
        ended.set()

    def second():
        begun.wait(60)
        with watch(model) as seen:
            overlapped.set()
            ended.wait(60)
            compiled(*inputs)
        return seen

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(first), pool.submit(second)
        one.result(), two.result().names()
    assert not graphs
    compiled(*inputs)
    assert graphs


def test_edit_with_the_same_weights_changes_nothing(inputs):
    model = tiny()
    plain = model(*inputs)
    with edit(model, lambda name, weights: weights):
        torch.testing.assert_close(model(*inputs), plain, atol=1e-5, rtol=1e-5)
    with edit(model, lambda name, weights: torch.zeros_like(weights), kinds="cross"):
        assert (model(*inputs) - plain).abs().max() > 0.01
    assert torch.equal(model(*inputs), plain)


def test_edit_of_states_and_heads(family):
    model, inputs = family
    plain = model(*inputs)
    with edit(model, lambda name, weights: weights.clone(), heads=[0]):
        torch.testing.assert_close(model(*inputs), plain, atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match="same shape"), edit(model, lambda name, weights: weights[..., :1, :1]):
        model(*inputs)
    with pytest.raises(UserError, match="became NoneType"), edit(model, lambda name, weights: None):
        model(*inputs)
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        with pytest.raises(UserError, match="recurrent cells"), edit(model, lambda name, x: x, states=True):
            model(*inputs)
        return
    with edit(model, lambda name, x: x.clone(), states=True):
        assert torch.equal(model(*inputs), plain)
    with edit(model, lambda name, x: x.flip(-1), states=True, layers=[1]):
        assert not torch.allclose(model(*inputs), plain)


def test_ablated_head_contributes_nothing(inputs):
    """Zero weights equal zero columns of the output projection."""
    model = tiny()
    with edit(model, lambda name, weights: torch.zeros_like(weights), layers=[1], heads=[1], kinds="decoder.*self"):
        ablated = model(*inputs)
    projection = model.decoder.blocks[1].self_attention.out_proj.weight
    with torch.no_grad():
        projection[:, projection.size(1) // 2 :] = 0
    torch.testing.assert_close(ablated, model(*inputs), atol=1e-5, rtol=1e-5)


def test_attention_weights_in_half_precision_are_float32():
    q, k = torch.randn(1, 1, 4, 8).bfloat16(), torch.randn(1, 1, 4, 8).bfloat16()
    assert attention_weights(q, k).dtype == torch.float32


def test_repr_of_a_recording_is_a_table_of_modules_kinds_and_shapes(inputs):
    model = tiny()
    with watch(model) as seen, torch.no_grad():
        assert repr(seen).startswith("nothing recorded yet")
        model(*inputs)
    header, *rows = repr(seen).splitlines()
    assert header.split()[:3] == ["module", "kind", "calls"] and len(rows) == len(seen.names())
    for row, name in zip(rows, seen.names()):
        assert row.split()[:3] == [name, seen.kinds[name], "1"]
        assert row.endswith(" × ".join(map(str, seen[name].shape)))
