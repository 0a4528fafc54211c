"""`watch` and `edit` see attention implementations of transformers that call no function of torch that could be seen."""

import threading

import pytest
import torch
from torch import Tensor, nn

from regard.attention.edit import edit
from regard.attention.watch import watch
from regard.errors import UserError

transformers = pytest.importorskip("transformers")
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=99)
IDS = torch.arange(3, 17).view(2, 7)


def opaque_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options):
    """Attend as flash-attn does for transformers, from padding (B, S), by an operator that `watch` does not know."""
    B, H, T, _ = query.shape
    S, window = key.size(2), options.get("sliding_window")
    causal = module.is_causal if options.get("is_causal") is None else options["is_causal"]
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
    allowed = (distance >= 0) if causal else torch.ones(T, S, dtype=torch.bool)
    if window is not None:
        allowed = allowed & (distance.abs() < window)
    allowed = allowed.expand(B, 1, T, S)
    if attention_mask is not None:
        allowed = allowed & attention_mask[:, None, None, :S].bool()
    bias = torch.zeros(B, 1, T, S, dtype=query.dtype).masked_fill(~allowed, torch.finfo(query.dtype).min)
    key, value = (x.repeat_interleave(H // x.size(1), 1) for x in (key, value))
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return attend(query, key, value, 0.0, False, attn_mask=bias, scale=options.get("scaling"))[0].transpose(1, 2), None


@pytest.fixture(autouse=True)
def implementation():
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register("opaque", opaque_attention)
    AttentionMaskInterface.register("opaque", flash_attention_mask)
    yield
    del AttentionInterface._global_mapping["opaque"]
    del AttentionMaskInterface._global_mapping["opaque"]


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    config = {
        "bert": lambda: transformers.BertConfig(**SIZES),
        "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
        "mistral": lambda: transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=3),
    }[name]()
    return transformers.AutoModel.from_config(config).eval()


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["bert", "llama", "mistral"])
def test_an_opaque_implementation_gives_the_weights_of_eager_attention_and_an_unchanged_output(name, padding):
    model, mask = build(name), torch.ones_like(IDS)
    if padding != "none":
        mask[1, slice(0, 2) if padding == "left" else slice(-2, None)] = 0
    model.set_attn_implementation("opaque")
    with torch.no_grad():
        plain = model(IDS, attention_mask=mask)[0]
        with watch(model) as seen:
            watched = model(IDS, attention_mask=mask)[0]
        model.set_attn_implementation("eager")
        own = model(IDS, attention_mask=mask, output_attentions=True).attentions
    assert torch.equal(plain, watched)
    assert len(seen.names()) == len(own) == 2
    for place, weights in zip(seen.names(), own):
        for row in range(2):  # the queries of padding mean nothing
            real = mask[row].bool()
            torch.testing.assert_close(seen[place][row, :, real], weights[row, :, real], atol=1e-6, rtol=0)


def test_editing_an_opaque_implementation_equals_editing_eager_attention():
    model = build("llama")
    outputs = []
    for implementation in ("opaque", "eager"):
        model.set_attn_implementation(implementation)
        with torch.no_grad(), edit(model, lambda _, weights: weights * 0, heads=[1]):
            outputs.append(model(IDS)[0])
        outputs.append(model(IDS)[0].detach())
    torch.testing.assert_close(outputs[0], outputs[2])
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4


def test_packed_rows_are_separate_documents():
    model = build("llama")
    model.set_attn_implementation("opaque")
    with torch.no_grad(), watch(model) as seen:
        model(IDS[:1], position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3]]))
    for place in seen.names():
        assert not seen[place][0, :, 3:, :3].any()
        assert seen[place][0, :, 3:, 3:].sum() == pytest.approx(4 * 4, rel=1e-5)


def test_flex_attention_gives_the_weights_of_eager_attention():
    model = build("llama")
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        model.set_attn_implementation("flex_attention")
        with watch(model) as seen:
            model(IDS)
        model.set_attn_implementation("eager")
        own = model(IDS, output_attentions=True).attentions
    for place, weights in zip(seen.names(), own, strict=True):
        torch.testing.assert_close(seen[place], weights, atol=1e-6, rtol=0)


def test_attention_sinks_are_refused_where_they_cannot_be_seen():
    model = build("llama")
    model.set_attn_implementation("opaque")
    with pytest.raises(UserError, match=r"sinks.*eager"), watch(model):
        model(IDS, s_aux=torch.zeros(4))


def test_another_thread_and_later_calls_use_the_implementation_itself():
    """The table of transformers is as before once nobody watches; meanwhile only the watching thread is recorded."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, other = build("llama"), build("llama")
    for one in (model, other):
        one.set_attn_implementation("opaque")
    with torch.no_grad():
        with watch(model) as seen:
            thread = threading.Thread(target=lambda: other(IDS))
            thread.start()
            thread.join()
            with watch(other):
                other(IDS)
            model(IDS)
        assert [len(seen.recorded(place)) for place in seen.names()] == [1, 1]
    assert ALL_ATTENTION_FUNCTIONS["opaque"] is opaque_attention
    assert not ALL_ATTENTION_FUNCTIONS._local_mapping
