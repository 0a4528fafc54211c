"""The decoding kernel equals attend, and a cache that is read by index equals one that moves its rows.

Skipped without a GPU, unless Triton interprets its kernels: TRITON_INTERPRET=1.
"""

import pytest
import torch

from regard import watch
from regard.attention.core import attend, attend_with_weights
from regard.attention.kernels import decode_kernel
from regard.attention.kv_cache import KVCache, RowIndex
from regard.attention.masks import GridPattern, Mask
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.layers import linear
from regard.layers.quantized import _for_inference, _fuse_projections
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.recipe import DecoderModel, TransformerModel

pytestmark = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16] if DEVICE == "cuda" else [torch.float32]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
V = 11


def close(dtype):
    return dict(atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.fixture(autouse=True)
def inference():
    torch.manual_seed(3)
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("structure", ["none", "lengths", "starts", "no key", "causal", "window"])
@pytest.mark.parametrize("S, K, J, heads", [(70, 24, 40, (4, 2)), (5, 64, 64, (2, 2)), (150, 256, 16, (2, 1))])
def test_decode_kernel_equals_the_written_out_equation(dtype, T, structure, S, K, J, heads):
    q = torch.randn(3, T, heads[0], K, device=DEVICE, dtype=dtype).transpose(1, 2)  # as projections lay them out
    k, v = (torch.randn(3, heads[1], S, width, device=DEVICE, dtype=dtype) for width in (K, J))
    some = torch.tensor([S, S // 2, 1], device=DEVICE)
    mask = {
        "none": Mask(),
        "lengths": Mask(lengths=some),
        "starts": Mask(starts=some - 1),
        "no key": Mask(lengths=some - 1),
        "causal": Mask(causal=True, starts=some - 1),
        "window": Mask(causal=True, window=3),
    }[structure]
    assert decode_kernel.can_run(q, k, v, mask) == (T == 1 or not mask.causal)
    found = attend(q, k, v, mask=mask, scale=0.1)
    torch.testing.assert_close(found, attend_with_weights(q, k, v, mask=mask, scale=0.1)[0], **close(dtype))


def test_decode_kernel_declines_what_it_does_not_support():
    q, k = torch.randn(1, 2, 1, 16, device=DEVICE), torch.randn(1, 2, 8, 16, device=DEVICE)
    assert decode_kernel.can_run(q, k, k, Mask())
    assert not decode_kernel.can_run(q, k, k, Mask(causal=True, grid=GridPattern(2, 2, "row")))
    assert not decode_kernel.can_run(q.double(), k.double(), k.double(), Mask())
    assert not decode_kernel.can_run(q.expand(-1, -1, 17, -1), k, k, Mask())
    with torch.inference_mode(False), torch.enable_grad():
        assert not decode_kernel.can_run(q, k, k, Mask())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("starts", [None, [2, 0, 1, 3]])
def test_cache_that_is_read_by_index_equals_one_that_moves_its_rows(dtype, starts):
    """Through reorderings, a step of several tokens, dropped rows, and a join."""
    R, H, G, K = 4, 4, 2, 16
    starts = None if starts is None else torch.tensor(starts, device=DEVICE)
    indexed, moved = KVCache(16), KVCache(16)

    def random(heads, tokens, rows=R):
        return torch.randn(rows, tokens, heads, K, device=DEVICE, dtype=dtype).transpose(1, 2)

    def step(rows=R):
        q, k, v, mask = random(H, 1, rows), random(G, 1, rows), random(G, 1, rows), Mask(causal=True, starts=starts)
        found = indexed.append_and_attend(q, k, v, mask, None)
        assert found is not None and indexed.is_read_by_index
        torch.testing.assert_close(found, attend_with_weights(q, *moved.append(k, v), mask=mask)[0], **close(dtype))

    def reorder(rows):
        nonlocal starts
        rows = torch.tensor(rows, device=DEVICE)
        starts = None if starts is None else starts[rows]
        for cache in (indexed, moved):
            cache.reorder(rows)

    first = random(G, 5), random(G, 5)
    for cache in (indexed, moved):
        cache.append(*first)
    step()
    storage = indexed.keys.data_ptr()
    for rows in ([1, 1, 0, 3], [0, 2, 2, 3], [3, 2, 1, 0]):
        reorder(rows)
        step()
    assert indexed.keys.data_ptr() == storage and indexed.index.table is not None, "nothing moved"
    several = random(G, 2), random(G, 2)
    for one, other in zip(indexed.append(*several), moved.append(*several)):
        assert torch.equal(one, other)
    step()
    reorder([0, 0, 1, 2])
    reorder([0, 3])
    assert torch.equal(indexed.keys[:, :, : indexed.length], moved.keys[:, :, : moved.length])
    step(rows=2)
    reorder([1, 0])
    joined = [KVCache.join([cache, cache]) for cache in (indexed, moved)]
    assert torch.equal(*(cache.values[:, :, : cache.length] for cache in joined))


def test_full_cache_is_not_written_beyond_its_end():
    cache = KVCache(2)
    new = torch.randn(1, 1, 1, 16, device=DEVICE)
    cache.append(new, new)
    assert cache.append_and_attend(new, new, new, Mask(), None) is not None
    assert cache.append_and_attend(new, new, new, Mask(), None) is None and cache.length == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_key_that_a_row_does_not_see_is_appended_unchanged(dtype):
    """The second row sees only the old key, the third nothing, but the cache is that of any other row."""
    cache = KVCache(4)
    old, new = (torch.randn(3, 1, 1, 16, device=DEVICE, dtype=dtype) for _ in range(2))
    cache.append(old, old)
    lengths, starts = torch.tensor([[2, 1, 2], [0, 0, 3]], device=DEVICE)
    found = cache.append_and_attend(new, new, new, Mask(causal=True, lengths=lengths, starts=starts), None)
    assert found is not None and torch.equal(found[1], old[1]) and not found[2].any()
    assert not torch.equal(found[0], old[0]), "the first row sees both"
    assert torch.equal(cache.keys[:, :, :2], torch.cat([old, new], dim=2)) and torch.equal(cache.keys, cache.values)


def test_layers_share_one_index():
    index, rows = RowIndex(), torch.tensor([1, 0], device=DEVICE)
    caches = [KVCache(4, index) for _ in range(3)]
    new = torch.randn(2, 1, 1, 16, device=DEVICE)
    for cache in caches:
        cache.append(new, new)
        cache.append_and_attend(new, new, new, Mask(), None)
        cache.reorder(rows)
    assert caches[0].index is caches[1].index is caches[2].index is not index


def models():
    shape = dict(width=16, heads=2, feed_forward=16, max_length=30)
    yield Transformer(TransformerModel(preset="tiny", tie="none", **shape), V, V)
    yield Transformer(TransformerModel(preset="tiny", tie="none", norm_first=True, norm="rms", key_value_heads=1, **shape), V, V)


@pytest.fixture
def linear_kernel_in_float32(monkeypatch):
    """In reduced precision, searches are equal within rounding only."""
    monkeypatch.setattr(linear, "DTYPES", (torch.float32,))


@pytest.mark.parametrize("which, converted", [(0, False), (1, False), (0, True), (1, True)])
def test_searches_with_kernels_equal_those_without(which, converted, monkeypatch, linear_kernel_in_float32):
    model = list(models())[which].to(DEVICE).eval()
    model.output.weight *= 3
    model = _for_inference(_fuse_projections(model)) if converted else model
    inputs = torch.randint(4, V, (3, 4), device=DEVICE), torch.tensor([4, 1, 3], device=DEVICE)
    limits = torch.tensor([7, 4, 6], device=DEVICE)
    calls = []
    kernel = decode_kernel.attend_few_queries
    monkeypatch.setattr(decode_kernel, "attend_few_queries", lambda *given: calls.append(given) or kernel(*given))
    found = beam_search(model, inputs, limits, beam=3, number=3), greedy_or_sample(model, inputs, limits)
    assert any(len(given) > 6 and given[6] is not None for given in calls), "some step reads the cache by index"
    assert linear.can_run(model.decoder.blocks[0].feed_forward.outer, model.output.weight) == converted
    for module in ("attention.kernels.decode_kernel", "layers.norm_kernel", "layers.stack", "layers.linear"):
        monkeypatch.setattr(f"regard.{module}.runs_inference_kernels", lambda x: False)
    expected = beam_search(model, inputs, limits, beam=3, number=3), greedy_or_sample(model, inputs, limits)
    assert found[1] == expected[1] or [h.tokens for h in found[1]] == [h.tokens for h in expected[1]]
    for one, other in zip(found[0], expected[0], strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)
        assert [h.rows for h in one] == [h.rows for h in other]


@pytest.mark.parametrize("converted", [False, True])
def test_watched_steps_equal_unwatched_ones_to_the_bit(converted, linear_kernel_in_float32):
    model = Gpt(DecoderModel(kind="transformer", preset="tiny", width=16, heads=2, feed_forward=16, max_length=30), V)
    model = model.to(DEVICE).eval()
    model = _for_inference(_fuse_projections(model)) if converted else model
    tokens = torch.randint(4, V, (2, 6), device=DEVICE)

    def read():
        state = model.start(None, tokens[:, :3], capacity=8)
        return torch.cat([model.step(token[:, None], state)[0] for token in tokens[:, 3:].unbind(1)], dim=1)

    with watch(model) as seen:
        watched = read()
    assert all(len(seen.recorded(name)) == 4 for name in seen.names()), "the prefix, then each token"
    assert torch.equal(read(), watched)
