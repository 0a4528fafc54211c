"""Laws of every captioner, for all encoders and decoders; and the equations of Xu et al. 2015."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.attention.hard_attention import HardAttention
from regard.attention.watch import watch
from regard.batches.batch import IGNORE_INDEX, Batch
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import greedy
from regard.models.efficientnet import EfficientNet, SamePaddingConv2d, convert_package_weights
from regard.recipe import CaptionModel, EfficientNetEncoderModel, Regularization
from regard.recipe.image_models import EFFICIENTNET_MAPS
from regard.recipe.images import CaptionRegularization
from regard.tasks import find_task
from regard.tokens.special_tokens import BOS, EOS
from regard.training.losses import CrossEntropy

V, SIZE = 11, (16, 24)
ENCODERS = {
    "cnn": {"kind": "cnn", "widths": [8, 12], "strides": [2, 2]},
    "patches": {"kind": "patches", "layers": 1, "width": 12, "heads": 2, "feed_forward": 16, "patch_size": 8, "pool": "class"},
    "efficientnet": {"kind": "efficientnet-lite0", "channels": 112, "frozen": False},
}


def build(encoder="cnn", seed=0, feature_dropout=0.0, **decoder):
    torch.manual_seed(seed)
    shape = {"heads": 2, "feed_forward": 16, "layers": 2} if decoder.get("kind") == "transformer" else {}
    settings = {"width": 8, **shape, **decoder}
    settings = CaptionModel.model_validate({"encoder": ENCODERS[encoder], "decoder": settings, "max_length": 16})
    regularize = CaptionRegularization(dropout=0.0, feature_dropout=feature_dropout)
    model = find_task("caption", settings.kind).models[settings.kind](settings, SIZE, V, regularize)
    return model.double().eval()


@st.composite
def models(draw):
    encoder, seed = draw(st.sampled_from(["cnn", "patches"])), draw(st.integers(0, 100))
    if draw(st.booleans()):
        positions = {"kind": draw(st.sampled_from(["sinusoidal", "rotary", "alibi"]))}
        return build(encoder, seed, kind="transformer", positions=positions, tie=draw(st.booleans()))
    return build(
        encoder,
        seed,
        attention=draw(st.sampled_from(["soft", "hard"])),
        gate=draw(st.booleans()),
        query_with_word=draw(st.booleans()),
        layers=draw(st.integers(1, 2)),
        embedding_width=draw(st.sampled_from([None, 6])),
    )


def examples(B=3, T=5):
    return torch.randint(0, 256, (B, 3, *SIZE), dtype=torch.uint8), torch.randint(4, V, (B, T))


def close(one, other, by=1e-10):
    torch.testing.assert_close(one, other, atol=by, rtol=0)


@given(models())
def test_cached_equals_uncached(model):
    pixels, target = examples()
    state, parts = model.start(pixels, capacity=2), []
    for start, end in ((0, 1), (1, 3), (3, 5)):
        logits, state = model.step(target[:, start:end], state)
        parts.append(logits)
    close(torch.cat(parts, 1), model(pixels, target))


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize("encoder", ["cnn", "patches"])
def test_dropped_channels_are_zero_in_every_cell_of_an_image(encoder, kind):
    model = build(encoder, kind=kind, feature_dropout=0.4)
    pixels, _ = examples(B=50)
    features = model.image_features(pixels)  # (B, S, D)
    dropped = model.train().image_features(pixels)
    kept = dropped.ne(0).any(1, keepdim=True)  # (B, 1, D)
    close(dropped, torch.where(kept, features / 0.6, 0.0))
    assert 0.5 < kept.double().mean() < 0.7
    assert (kept != kept[:1]).any(), "each image loses channels of its own"


@given(models())
def test_logits_of_a_feature_map_equal_those_of_its_pixels(model):
    pixels, target = examples()
    feature_map = model.feature_map(pixels)
    close(model(feature_map, target), model(pixels, target))
    close(model.step(target, model.start(feature_map, capacity=5))[0], model(pixels, target))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_feature_map_depends_on_its_modules_only(encoder):
    model, (pixels, _) = build(encoder), examples()
    before = model.feature_map(pixels)
    inside = {id(p) for part in model.feature_map_modules() for p in part.parameters()}
    with torch.no_grad():
        for p in model.parameters():
            if id(p) not in inside:
                p.add_(1.0)
    close(model.feature_map(pixels), before)


@given(models())
def test_batched_equals_one_by_one_and_later_tokens_do_not_change_earlier_logits(model):
    pixels, target = examples()
    together = model(pixels, target)
    for b in range(len(pixels)):
        close(together[b], model(pixels[b : b + 1], target[b : b + 1])[0])
    changed = target.clone()
    changed[:, 3:] = 4
    close(together[:, :3], model(pixels, changed)[:, :3])


def rescore(model, pixels, tokens, prefix=(BOS,)):
    with torch.no_grad():
        log_p = model(pixels[None], torch.tensor([[*prefix, *tokens]])).log_softmax(-1)[0, len(prefix) - 1 :]
    return sum(float(log_p[i, token]) for i, token in enumerate([*tokens, EOS]))


@given(models(), st.integers(2, 4))
def test_beam_search_equals_greedy_with_one_beam_and_scores_equal_rescoring(model, beam):
    pixels, _ = examples()
    limits = torch.tensor([6, 4, 5])
    walked = greedy_or_sample(model, pixels, limits, greedy)
    narrow = beam_search(model, pixels, limits, beam=1)
    wide = beam_search(model, pixels, limits, beam=beam, alpha=0.6, number=2)
    for row in range(3):
        assert walked[row].tokens == narrow[row][0].tokens
        for h in wide[row]:
            assert h.log_probability == pytest.approx(rescore(model, pixels[row], h.tokens), abs=1e-5)


@given(models())
def test_padded_prefixes_continue_as_if_decoded_alone(model):
    pixels, _ = examples()
    prefixes = [[BOS], [BOS, 5, 6], [BOS, 7]]
    padded = torch.tensor([[-1] * (3 - len(prefix)) + prefix for prefix in prefixes])
    found = greedy_or_sample(model, pixels, torch.tensor([5, 5, 5]), greedy, prefix=padded)
    for row, prefix in enumerate(prefixes):
        assert found[row].log_probability == pytest.approx(rescore(model, pixels[row], found[row].tokens, prefix), abs=1e-5)


@given(models())
def test_cross_attention_weights_sum_to_one_over_the_image(model):
    pixels, target = examples()
    plain = model(pixels, target)
    with watch(model, kinds="cross") as seen:
        assert torch.equal(model(pixels, target), plain)
    weights = seen.stack()  # (L, B, H, T, S)
    rows, columns = model.grid
    assert weights.shape[1] == 3 and weights.shape[3:] == (5, rows * columns)
    close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_feature_map_is_in_row_major_order():
    """The last position of the first row depends most on the upper right corner of the image."""
    for encoder in ("cnn", "patches"):
        model = build(encoder)
        rows, columns = model.grid
        assert model.grid == model.settings.encoder.grid(SIZE)
        pixels = torch.randn(1, 3, *SIZE, dtype=torch.double, requires_grad=True)
        features = model.image_features(pixels)
        assert features.shape[:2] == (1, rows * columns)
        features[0, columns - 1].square().sum().backward()
        sensitivity = pixels.grad.abs().sum((0, 1)).reshape(2, SIZE[0] // 2, 3, SIZE[1] // 3).sum((1, 3))
        assert sensitivity.argmax() == 2


def batch_of(pixels, target):
    labels = torch.cat([target[:, 1:], torch.full((len(target), 1), EOS)], 1)
    labels[1, 3:] = IGNORE_INDEX
    return Batch({"pixels": pixels, "target": target}, labels, np.arange(len(target)))


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
def test_doubly_stochastic_loss_equals_equation_14(r_drop):
    model = build(doubly_stochastic_weight=0.7)
    batch = batch_of(*examples())
    with watch(model, kinds="cross") as seen:
        model(**batch.inputs)
    alpha = seen.stack()[0, :, 0]
    expected = 0.0
    for b in range(3):
        words = int((batch.labels[b] != IGNORE_INDEX).sum())
        expected += 0.7 * sum((1 - sum(alpha[b, t, i] for t in range(words))) ** 2 for i in range(alpha.size(-1)))
    model.train()
    model(**(batch.duplicate() if r_drop else batch).inputs)
    close(model.auxiliary_loss(batch), expected)
    without = build(doubly_stochastic_weight=0.0).train()
    close(
        CrossEntropy(Regularization(label_smoothing=0.0, r_drop=r_drop))(model, batch) - expected,
        CrossEntropy(Regularization(label_smoothing=0.0, r_drop=r_drop))(without, batch),
        by=1e-5,
    )


def test_auxiliary_loss_is_zero_in_evaluation():
    model = build(doubly_stochastic_weight=1.0)
    batch = batch_of(*examples())
    model(**batch.inputs)
    assert model.auxiliary_loss(batch) == 0


def force_samples(model, positions):
    """Make hard attention sample these positions."""
    order = iter(positions)
    model.decoder.attention.sample = lambda weights: torch.full(weights.shape[:3], next(order))


def test_reinforce_gradient_is_unbiased():
    """Averaged over all samples by their probability, it is that of Σ_s p(s) log p(y | s), eq. 10, for any baseline."""
    words, pixels = 2, torch.randint(0, 256, (1, 3, *SIZE), dtype=torch.uint8)
    model = build("patches", attention="hard", soft_probability=0.0, entropy_weight=0.0, reinforce_weight=1.0).train()
    positions = model.grid[0] * model.grid[1]
    target = torch.tensor([[BOS, 5]])
    batch = Batch({"pixels": pixels, "target": target}, torch.tensor([[5, 7]]), np.arange(1))
    weights = [p for name, p in model.named_parameters() if "cross_attention" in name or "bridge" in name]
    bound, estimates = 0.0, [torch.zeros_like(p) for p in weights]
    for samples in product(range(positions), repeat=words):
        force_samples(model, samples)
        model.baseline.fill_(-1.3)
        loss = CrossEntropy(Regularization(label_smoothing=0.0))
        estimate = torch.autograd.grad(-loss(model, batch), weights, retain_graph=True)
        log_p = model.last_logits.log_softmax(-1).gather(-1, batch.labels[..., None]).sum()
        probability = model.decoder.attention.log_probs().sum().exp()
        bound = bound + probability * log_p
        estimates = [total + probability.detach() * part for total, part in zip(estimates, estimate)]
    for exact, found in zip(torch.autograd.grad(bound, weights), estimates):
        close(found, exact, by=1e-7)
        assert exact.abs().max() > 1e-5


def test_reward_baseline_and_entropy_bonus():
    model = build(attention="hard", soft_probability=0.0, entropy_weight=0.5, reinforce_weight=0.0).train()
    batch = batch_of(*examples())
    model(**batch.inputs)
    attention = model.decoder.attention
    weights, labelled = attention.weights()[:, 0], batch.labels >= 0
    close(model.auxiliary_loss(batch), -0.5 * torch.special.entr(weights).sum(-1)[labelled].sum())
    log_p = model.last_logits.log_softmax(-1).gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
    close(model.baseline, 0.1 * (log_p * labelled).sum(1).mean().detach(), by=1e-6)


def test_hard_attention_samples_one_position_or_takes_the_mean():
    torch.manual_seed(0)
    attention, (q, k, v) = HardAttention(), torch.randn(3, 64, 1, 2, 5, dtype=torch.double)
    attention.reset(64, q.device)
    output = attention.train()(q, k, v)
    assert all((row[None] == values).all(-1).any() for row, values in zip(output[:, 0, 0], v[:, 0]))
    attention.soft_probability = 0.5
    attention.reset(64, q.device)
    output = attention(q, k, v)
    soft = nn.functional.scaled_dot_product_attention(q, k, v)
    assert 10 < attention.soft.sum() < 54
    close(output[attention.soft], soft[attention.soft])
    assert (attention.log_probs()[attention.soft] == 0).all() and (attention.log_probs()[~attention.soft] < 0).any()
    most_likely = (q @ k.transpose(-2, -1)).argmax(-1)
    close(attention.eval()(q, k, v), v.gather(2, most_likely[..., None].expand(-1, -1, -1, 5)))


def package_name(name):
    """The package's name of one of our tensors."""
    ends = {"stem.0": "_conv_stem", "stem.1": "_bn0", "head.0": "_conv_head", "head.1": "_bn1"}
    parts = {
        "expand.0": "_expand_conv",
        "expand.1": "_bn0",
        "depthwise.0": "_depthwise_conv",
        "depthwise.1": "_bn1",
        "project.0": "_project_conv",
        "project.1": "_bn2",
    }
    *layer, tensor = name.split(".")
    if layer[0] == "blocks":
        return f"_blocks.{layer[1]}.{parts['.'.join(layer[2:])]}.{tensor}"
    return f"{ends['.'.join(layer)]}.{tensor}"


@pytest.mark.parametrize(("kind", "published"), [("lite0", 4_652_008), ("lite1", 5_416_680), ("lite2", 6_092_072)])
def test_efficientnet_has_its_published_size_and_loads_the_package_weights(kind, published):
    network = EfficientNet(f"efficientnet-{kind}").eval()
    assert sum(p.numel() for p in network.parameters()) == published - 1_281_000  # without its classifier
    weights = {package_name(name): torch.randn_like(tensor, dtype=torch.float) for name, tensor in network.state_dict().items()}
    found = convert_package_weights({**weights, "_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)})
    assert found.keys() == network.state_dict().keys()
    assert network(torch.zeros(1, 3, 64, 97)).shape == (1, 1280, 2, 4)


@pytest.mark.parametrize("frozen", [True, 11, 4, False])
def test_frozen_blocks_do_not_change_and_all_others_are_trained(frozen):
    encoder = {**ENCODERS["efficientnet"], "frozen": frozen}
    settings = CaptionModel.model_validate({"encoder": encoder, "decoder": {"width": 8}, "max_length": 8})
    model = find_task("caption", "lstm").models["lstm"](settings, SIZE, V).train()
    network = model.encoder.network
    number = len(network.blocks) if frozen is True else int(frozen)
    still = ("stem.", *(f"blocks.{i}." for i in range(number))) if frozen else ()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    pixels, target = examples()
    model(pixels, target).sum().backward()
    assert {name for name, p in network.named_parameters() if p.grad is None} == {
        name for name, _ in network.named_parameters() if name.startswith(still)
    }
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(before[name], tensor)}
    assert changed == {name for name in before if "running" in name or "num_batches" in name} - {
        name for name in before if name.startswith(still)
    }


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (5, 1), (3, 2), (5, 2)])
def test_same_padding_is_that_of_tensorflow(kernel, stride):
    torch.manual_seed(0)
    convolution = SamePaddingConv2d(4, 4, kernel, stride, groups=4).double()
    for size in product(range(5, 9), repeat=2):
        x = torch.randn(2, 4, *size, dtype=torch.float64)
        out = [-(-n // stride) for n in size]
        pads = [max(0, (m - 1) * stride + kernel - n) for m, n in zip(out, size)]
        padded = torch.zeros(2, 4, *(n + pad for n, pad in zip(size, pads)), dtype=torch.float64)
        padded[:, :, pads[0] // 2 : pads[0] // 2 + size[0], pads[1] // 2 : pads[1] // 2 + size[1]] = x
        expected = nn.functional.conv2d(padded, convolution.weight, stride=stride, groups=4)
        assert list(expected.shape[2:]) == out
        torch.testing.assert_close(convolution(x), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", EFFICIENTNET_MAPS)
def test_feature_maps_of_an_efficientnet_have_the_channels_stride_and_blocks_of_its_settings(kind):
    for channels in EFFICIENTNET_MAPS[kind]:
        settings = EfficientNetEncoderModel.model_validate({"kind": kind, "channels": channels})
        network = EfficientNet(kind, channels).eval()
        assert len(network.blocks) == settings.layers
        assert network(torch.zeros(1, 3, 33, 64)).shape == (1, channels, *settings.grid((33, 64)))


def test_channels_of_another_efficientnet_are_refused():
    with pytest.raises(ValueError, match="efficientnet-lite2 has feature maps of 1280, 352, 120 channels"):
        EfficientNetEncoderModel(kind="efficientnet-lite2", channels=112)


def test_more_frozen_blocks_than_there_are_is_refused():
    encoder = {**ENCODERS["efficientnet"], "frozen": 12}
    with pytest.raises(ValueError, match=r"frozen = 12: with channels = 112 there are 11 blocks"):
        CaptionModel.model_validate({"encoder": encoder})


def test_an_efficientnet_that_ends_earlier_takes_the_first_blocks_of_the_whole_one():
    whole = {f"encoder.network.{name}": tensor for name, tensor in EfficientNet().state_dict().items()}
    model = build("efficientnet")
    ours = {f"encoder.network.{name}" for name in model.encoder.network.state_dict()}
    taken = model.adapt_weights({**whole, "decoder.x": torch.zeros(1)})
    assert taken.keys() == {*ours, "decoder.x"} and ours < whole.keys()
    assert build("cnn").adapt_weights(whole) == whole
