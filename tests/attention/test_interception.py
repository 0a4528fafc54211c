"""What `watch` and `edit` promise for models of any library: names, calls, kinds, threads, gradients, and errors."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.edit import edit
from regard.attention.modules import named_modules
from regard.attention.watch import watch
from regard.errors import UserError

transformers = pytest.importorskip("transformers")
SIZES = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, vocab_size=99)


def bert(**settings) -> nn.Module:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES, **settings)).eval()


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return transformers.LlamaForCausalLM(config).eval()


IDS = torch.arange(3, 17).view(2, 7)


def test_layers_heads_rows_and_kinds_are_chosen_by_module_path():
    model = bert()
    with torch.no_grad(), watch(model) as whole:
        model(IDS)
    with torch.no_grad(), watch(model, layers=[1], heads=[2, 0], rows=[-1], kinds="self") as seen:
        model(IDS)
    (name,) = seen.names()
    assert name == "encoder.layer.1.attention.self" and seen.kinds == {name: "self"}
    assert torch.equal(seen[name], whole[name][:, [2, 0], -1:])


def test_a_choice_that_matches_nothing_is_an_error_with_the_nearest_names():
    model = bert()
    for wrong, problem in [
        ({"layers": [7]}, "the model has 0 to 2"),
        ({"kinds": "cross"}, "kinds = 'cross': no attention of the model matches; 3 were seen"),
        ({"kinds": "encoder.layer.0.attention.selv"}, "encoder.layer.0.attention.self"),
        ({"kinds": "("}, "not a regular expression"),
        ({"heads": [4]}, "has 4"),
    ]:
        with pytest.raises(UserError, match=problem.replace("(", r"\(")), watch(model, **wrong):
            model(IDS)
        if "heads" not in wrong:
            with pytest.raises(UserError), edit(model, lambda _, weights: weights, **wrong):
                model(IDS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()), "the hooks are removed"


def test_a_model_without_attention_is_an_error_that_names_its_modules():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(UserError, match=r"no attention found in Sequential.*Linear, ReLU"), watch(model):
        model(torch.randn(2, 4))
    with pytest.raises(UserError, match="no attention found"), edit(model, lambda _, weights: weights):
        model(torch.randn(2, 4))


def test_a_softmax_that_is_not_multiplied_with_values_is_no_attention():
    class Router(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            gates = F.softmax(x @ x.mT, dim=-1)
            return gates.sum(-1) + gates.argmax(-1)

    router = Router()
    with pytest.raises(UserError, match="no attention found"), watch(router):
        router(torch.randn(2, 3, 4))


def test_generation_with_a_cache_is_recorded_call_by_call_and_equals_one_pass():
    """Left-padded prompts, grouped heads, a cache that grows: the rows of all calls are those of one pass over the output."""
    model = llama()
    ids, mask = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    options = dict(attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    plain = model.generate(ids, **options)
    with torch.no_grad(), watch(model) as seen:
        written = model.generate(ids, **options)
    assert torch.equal(plain, written)
    with torch.no_grad(), watch(model) as forced:
        model(written[:, :-1], attention_mask=F.pad(mask, (0, 4), value=1))
    for name in forced.names():
        assert seen.kinds[name] == "causal"
        assert [call.shape[2] for call in seen.recorded(name)] == [4, 1, 1, 1, 1]
        real = [slice(None), slice(2, None)]  # queries of the padding see nothing that matters
        for row in range(2):
            torch.testing.assert_close(seen[name][row, :, real[row]], forced[name][row, :, real[row]], atol=1e-6, rtol=0)


def test_a_module_that_is_called_again_or_attends_twice_keeps_its_calls_apart():
    torch.manual_seed(0)
    albert = transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=32)).eval()
    with torch.no_grad(), watch(albert) as seen:
        albert(IDS)
    (name,) = seen.names()
    assert len(seen.recorded(name)) == 3, "three layers share one module"

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x) + F.scaled_dot_product_attention(x, x, x, is_causal=True)

    model = Twice()
    with watch(model) as seen:
        model(torch.randn(1, 2, 5, 4))
    assert seen.kinds == {"Twice": "self", "Twice:2": "causal"}


def test_budget_reductions_and_files_are_those_of_our_own_models(tmp_path):
    from regard.attention.record import Record

    model = bert()
    with torch.no_grad(), watch(model) as whole:
        model(IDS)
    with torch.no_grad(), watch(model, budget="2KB", keep="top") as seen:
        model(IDS)
    assert seen.nbytes <= 2000 and all("largest" in text for text in seen.dropped.values())
    tokens = {"text": [[str(i) for i in row] for row in IDS.tolist()]}
    whole.to_record(tokens).write(tmp_path / "a.attn")
    read = Record.read(tmp_path / "a.attn")
    module = read.modules["encoder.layer.2.attention.self"]
    assert (module.layer, module.kind, module.queries) == (2, "self", "text")
    assert torch.equal(torch.from_numpy(module.weights()), whole["encoder.layer.2.attention.self"])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gradients_by_the_weights_equal_those_of_autograd(implementation):
    model = bert(attn_implementation=implementation)
    with watch(model, gradients=True) as seen:
        model(IDS)[0].square().sum().backward()
    eager = bert(attn_implementation="eager")
    output = eager(IDS, output_attentions=True)
    expected = torch.autograd.grad(output[0].square().sum(), output.attentions)
    for name, gradient in zip(seen.names(), expected):
        torch.testing.assert_close(seen.gradient(name), gradient, atol=1e-5, rtol=1e-4)


def test_hidden_states_values_queries_and_scores_of_another_librarys_model():
    model = bert()
    with torch.no_grad(), watch(model, states=True, values=True, queries=True) as seen:
        hidden = model(IDS, output_hidden_states=True).hidden_states
    assert list(seen.states) == [f"encoder.layer.{i}" for i in range(3)]
    for layer, name in enumerate(seen.names()):
        assert torch.equal(seen.states[f"encoder.layer.{layer}"][0], hidden[layer + 1])
        scores = seen.queries[name][0] @ seen.keys[name][0].mT * 8**-0.5
        torch.testing.assert_close(scores, seen.scores[name][0])
        torch.testing.assert_close(seen.scores[name][0].softmax(-1), seen[name])
        assert seen.values[name][0].shape == (2, 4, 7, 8)


def test_two_threads_watch_two_models_and_do_not_see_each_other():
    models, found, barrier = [bert(), llama()], {}, threading.Barrier(2)

    def run(number: int) -> None:
        with torch.no_grad(), watch(models[number]) as seen:
            barrier.wait()
            for _ in range(5):
                models[number](IDS)
            barrier.wait()
        found[number] = {name: len(seen.recorded(name)) for name in seen.names()}

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == {f"encoder.layer.{i}.attention.self": 5 for i in range(3)}
    assert found[1] == {f"model.layers.{i}.self_attn": 5 for i in range(3)}


def test_a_compiled_model_is_watched_as_its_module():
    model = bert()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = model(IDS)[0]
        with pytest.warns(UserWarning, match="runs as its module"), watch(compiled) as seen:
            assert torch.equal(compiled(IDS)[0], plain)
    assert seen.names() == [f"encoder.layer.{i}.attention.self" for i in range(3)]
    assert "encoder.layer.0.attention.self" in named_modules(compiled)


def test_edit_changes_only_the_chosen_head_and_is_undone():
    model = llama()
    with torch.no_grad():
        plain = model(IDS).logits
        with edit(model, lambda _, weights: torch.zeros_like(weights), layers=[2], heads=[1]):
            edited = model(IDS).logits
        with edit(model, lambda _, weights: weights):
            torch.testing.assert_close(model(IDS).logits, plain)
        assert torch.equal(model(IDS).logits, plain) and not torch.allclose(edited, plain)
        with pytest.raises(UserError, match="same shape"), edit(model, lambda _, weights: weights[:, :1]):
            model(IDS)
