"""The laws that DALL·E's two models owe."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.masks import CAUSAL, GridPattern, Mask
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import Sampler
from regard.layers.codebook import VectorQuantizer, cosine_anneal
from regard.models.dalle import Dalle
from regard.models.dvae import Dvae, logit_laplace
from regard.recipe import DalleModel, DvaeModel
from regard.tasks.text_to_image import CODES_ONLY
from regard.tokens.special_tokens import BOS

WORDS, TEXT, CODES, GRID = 9, 4, 7, (3, 4)


def dalle(attention=("row", "column", "conv", "full")):
    settings = DalleModel(
        image_codes={"run": "codes"},
        layers=4,
        width=16,
        heads=2,
        feed_forward=32,
        text_length=TEXT,
        attention=list(attention),
        kernel_size=3,
    )
    torch.manual_seed(3)
    model = Dalle(settings, WORDS, CODES, GRID).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def row(number, length=1 + TEXT + 12):
    """<s>, words, fillers, codes."""
    chance = torch.Generator().manual_seed(number)
    text = torch.randint(4, WORDS, (TEXT,), generator=chance)
    text[2:] = WORDS + torch.arange(2, TEXT)
    codes = WORDS + TEXT + torch.randint(CODES, (12,), generator=chance)
    return torch.cat([torch.tensor([BOS]), text, codes])[:length]


def another(token):
    """A word or filler for a word or filler, a code for a code."""
    first = WORDS + TEXT
    return first + (token - first + 1) % CODES if token >= first else 4 + (token - 3) % (first - 4)


@given(text=st.integers(1, 5), rows=st.integers(1, 4), columns=st.integers(1, 5), kernel=st.sampled_from([3, 5, 11]))
def test_grid_pattern_equals_its_definition(text, rows, columns, kernel):
    S = text + rows * columns
    reach = min(kernel // 2, (columns - 1) // 2)
    near = {(down * columns + across) for down in range(reach + 1) for across in range(-reach, reach + 1)}
    rule = {
        "row": lambda q, k: q - k <= columns,
        "column": lambda q, k: (q - text) % columns == (k - text) % columns,
        "conv": lambda q, k: q - k in near,
    }
    for see, sees in rule.items():
        seen = (Mask(grid=GridPattern(text, columns, see, kernel)) & CAUSAL).dense(S, S)[0, 0]
        for q in range(S):
            for k in range(S):
                assert seen[q, k] == (k <= q and (k < text or sees(q, k))), (see, q, k)
        last = (Mask(grid=GridPattern(text, columns, see, kernel)) & CAUSAL).dense(1, S)[0, 0, 0]
        assert torch.equal(last, seen[-1])


def test_row_pattern_reaches_the_position_above():
    """Fig. 11 (a): five positions back in an image of four columns."""
    seen = (Mask(grid=GridPattern(6, 4, "row")) & CAUSAL).dense(22, 22)[0, 0]
    assert seen[6 + 9, 6:].tolist() == [5 <= k <= 9 for k in range(16)] and seen[6 + 9, :6].all()


def test_only_equal_grid_patterns_combine():
    one = Mask(grid=GridPattern(3, 4, "row"))
    assert (one & one).grid == one.grid and (one & CAUSAL).structure == {"grid", "causal"}
    with pytest.raises(ValueError, match="two different grid"):
        one & Mask(grid=GridPattern(3, 4, "column"))


@pytest.mark.parametrize("attention", [["full"], ["row"], ["column"], ["conv"], ["row", "column", "row", "conv"]])
def test_later_tokens_cannot_change_earlier_logits(attention):
    model, ids = dalle(attention), row(1)[None]
    before = model(ids)
    for position in range(1, ids.size(1)):
        changed = ids.clone()
        changed[0, position] = another(int(ids[0, position]))
        torch.testing.assert_close(model(changed)[:, :position], before[:, :position], atol=1e-10, rtol=0)
        assert not torch.allclose(model(changed)[:, position], before[:, position])


def test_column_attention_sees_its_column_only():
    """In one layer; the text is seen from everywhere."""
    model = (
        Dalle(
            DalleModel(
                image_codes={"run": "codes"}, layers=1, width=16, heads=2, feed_forward=32, text_length=TEXT, attention=["column"]
            ),
            WORDS,
            CODES,
            GRID,
        )
        .double()
        .eval()
    )
    ids, last = row(1)[None], TEXT + 12
    before = model(ids)[0, last]
    for position, seen in ((TEXT + 8, True), (TEXT + 4, True), (TEXT + 7, False), (TEXT + 11, False), (2, True)):
        changed = ids.clone()
        changed[0, position] = another(int(ids[0, position]))
        assert torch.allclose(model(changed)[0, last], before, atol=1e-12) != seen


@pytest.mark.parametrize("attention", [["full"], ["row", "column", "row", "conv"]])
def test_cached_equals_uncached_and_batched_equals_one_by_one(attention):
    model, rows = dalle(attention), torch.stack([row(1), row(2)])
    whole = model(rows)
    torch.testing.assert_close(torch.cat([model(rows[:1]), model(rows[1:])]), whole, atol=1e-10, rtol=0)
    state = model.start(None, rows[:, :TEXT])
    for position in range(TEXT, rows.size(1)):
        logits, state = model.step(rows[:, position : position + 1], state)
        torch.testing.assert_close(logits[:, 0], whole[:, position], atol=1e-10, rtol=0)


def test_only_codes_are_sampled_in_the_image_and_no_codes_in_the_text():
    model = dalle()
    logits = model(row(1)[None])[0]
    codes = torch.arange(model.vocabulary) >= model.first_code
    for position, one in enumerate(logits):
        assert torch.equal(one.isfinite(), codes if position >= TEXT else ~codes)
    prefix = torch.stack([row(n, 1 + TEXT) for n in range(6)])
    drawn = greedy_or_sample(
        model, None, torch.full((6,), 13), Sampler(seed=1, temperature=50.0), prefix=prefix, special_tokens=CODES_ONLY
    )
    for one in drawn:
        assert len(one.tokens) == 12 and min(one.tokens) >= model.first_code and max(one.tokens) < model.vocabulary
    assert len({token for one in drawn for token in one.tokens}) == CODES


@pytest.mark.parametrize(
    "settings", [{}, {"quantizer": "vq"}, {"quantizer": "vq", "codebook_update": "loss"}, {"reconstruction_loss": "laplace"}]
)
def test_gradients_reach_the_encoder_through_the_codebook(settings):
    model = Dvae(DvaeModel(codebook_size=11, code_width=4, width=8, layers=1, commitment_weight=0.0, **settings), (8, 12)).train()
    pixels = torch.randint(256, (3, 3, 8, 12), dtype=torch.uint8)
    reconstruction = model(pixels)
    assert reconstruction.codes.shape == (3, 2, 3) and reconstruction.penalty.shape == (3,)
    model.pixel_loss(reconstruction.prediction, pixels).sum().backward()
    assert model.encoder[0].weight.grad.abs().sum() > 0
    image = model.decode(reconstruction.codes)
    assert image.shape == pixels.shape and image.dtype == torch.uint8


def test_straight_through_gradient_equals_the_decoders():
    book = VectorQuantizer(DvaeModel(quantizer="vq", codebook_size=5, code_width=3, width=3), (8, 8)).eval()
    torch.nn.init.dirac_(book.to_vectors.weight)
    torch.nn.init.zeros_(book.to_vectors.bias)
    x = torch.randn(2, 3, 2, 2, requires_grad=True)
    chosen, towards = book(x), torch.randn(2, 3, 2, 2)
    (chosen.vectors * towards).sum().backward()
    torch.testing.assert_close(x.grad, towards)
    distance = (x.detach()[:, None] - book.table[None, :, :, None, None]).square().sum(2)  # (B, V, h, w)
    assert torch.equal(chosen.codes, distance.argmin(1))
    torch.testing.assert_close(chosen.vectors, book.table[chosen.codes].permute(0, 3, 1, 2))


def test_codebook_follows_moving_averages_and_dead_codes_restart():
    book = VectorQuantizer(
        DvaeModel(quantizer="vq", codebook_size=4, code_width=2, width=2, decay=0.0, restart_threshold=0.5), (8, 8)
    ).train()
    book.table.copy_(torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [-50.0, -50.0]]))
    vectors = torch.tensor([[0.0, 1.0], [1.0, 0.0], [9.0, 1.0], [11.0, 1.0], [0.0, 9.0], [0.0, 9.0]])
    book._update(vectors, torch.tensor([0, 0, 1, 1, 2, 2]))
    torch.testing.assert_close(book.table[:3], torch.tensor([[0.5, 0.5], [10.0, 1.0], [0.0, 9.0]]))
    assert (book.table[3] == vectors).all(1).any() and (book.counts > 0).all()
    before = book.table.clone()
    book._update(torch.full((6, 2), torch.nan), torch.zeros(6, dtype=torch.long))
    assert torch.equal(book.table, before)


def test_temperature_and_kl_weight_are_functions_of_the_step():
    model = Dvae(
        DvaeModel(codebook_size=4, width=8, anneal_steps=100, temperature=(2.0, 0.5), kl_weight=6.0, kl_warmup_steps=10), (8, 8)
    )
    found = []
    for step in (1, 50, 100, 1000, 50):
        model.begin_step(step)
        found.append((float(model.codebook.temperature), float(model.codebook.weight)))
    assert found[0][0] > 1.99 and found[1] == pytest.approx((1.25, 6.0)) and found[2] == found[3] == pytest.approx((0.5, 6.0))
    assert found[4] == found[1] and cosine_anneal(5, 10, 0.0, 6.0) == pytest.approx(3.0)


def test_penalty_is_the_kl_divergence_from_uniform():
    model = Dvae(DvaeModel(codebook_size=4, code_width=4, width=8, kl_weight=1.0, kl_warmup_steps=1), (8, 8)).eval()
    pixels = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        logits = model.codebook.to_logits(model.encoder(model._scale(pixels)))
        p = logits.movedim(1, -1).softmax(-1)
        expected = (p * (p * 4).log()).sum((1, 2, 3)) / (3 * 64)
        torch.testing.assert_close(model(pixels).penalty, expected, atol=1e-6, rtol=1e-5)
        torch.nn.init.zeros_(model.codebook.to_logits.weight)
        assert float(model(pixels).penalty.abs().max()) < 1e-6


def test_logit_laplace_integrates_to_one():
    """Over the range of pixels, for a distribution narrow enough to lie inside."""
    intensity = torch.linspace(0, 1, 20_001, dtype=torch.float64)[None, None, None]
    prediction = torch.tensor([0.3, -2.5], dtype=torch.float64)[None, :, None, None]
    density = (-logit_laplace(prediction, intensity)).exp()[0, 0, 0]
    assert float(torch.trapezoid(density, 0.8 * intensity[0, 0, 0] + 0.1)) == pytest.approx(1, abs=2e-3)
