"""Searches that keep every sequence in the batch, as CUDA graphs need, equal eager ones; on a GPU, captured ones do too."""

import gc
import weakref
from itertools import chain, zip_longest

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import beam as beam_module
from regard.decoding import cuda_graphs
from regard.decoding import greedy as greedy_module
from regard.decoding.beam import beam_search
from regard.decoding.cuda_graphs import CUDA_GRAPH_CACHES, WARMUP_RUNS, CudaGraphCache, cuda_graph_cache
from regard.decoding.greedy import decode_steps, greedy_or_sample
from regard.decoding.sampling import Sampler, greedy
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer
from regard.recipe import DecoderModel, TransformerModel, UniversalModel
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, EOS, NO_TOKEN, SpecialTokens

V = 11
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
TRANSLATORS = [
    lambda **settings: Transformer(TransformerModel(**settings), V, V),
    lambda **settings: UniversalTransformer(UniversalModel(kind="universal", **settings), V, V),
]


@st.composite
def problems(draw):
    torch.manual_seed(draw(st.integers(0, 10_000)))
    settings = {"preset": "tiny", "width": 8, "heads": 2, "feed_forward": 16, "max_length": 40, "tie": "none"}
    model = draw(st.sampled_from(TRANSLATORS))(**settings).double().eval()
    with torch.no_grad():
        model.output.weight *= draw(st.sampled_from([1.0, 4.0]))
        model.output.weight[EOS] += 0.1  # some outputs end before their limits
    B, S = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    lengths = torch.tensor([draw(st.integers(1, S)) for _ in range(B)])
    return model, (torch.randint(4, V, (B, S)), lengths), torch.tensor([draw(st.integers(1, 9)) for _ in range(B)])


class UncapturedSearch:
    """Stands in for a `CudaGraphSearch`: computes each step when it is asked for."""

    is_replaying = False

    def __init__(self, search, buffers):
        self.search, self.buffers = search, buffers

    @torch.inference_mode()
    def replay(self, inputs, max_steps):
        self.search.start()
        for _ in range(max_steps):
            yield self.search.step()


CAPTURED = []


class AlwaysCaptured:
    def find(self, longest, kind, inputs, build):
        hash((longest, kind))
        CAPTURED.append(UncapturedSearch(build(inputs), inputs))
        return CAPTURED[-1]


@pytest.fixture(scope="module", autouse=True)
def in_place():
    with pytest.MonkeyPatch.context() as patch:

        def switch(on):
            for module in (beam_module, greedy_module):
                patch.setattr(module, "cuda_graph_cache", (lambda *_: AlwaysCaptured()) if on else cuda_graph_cache)

        yield switch
    CUDA_GRAPH_CACHES.clear()


def assert_same(found, expected):
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
        assert one.score == pytest.approx(other.score, abs=1e-4)


@given(problems(), st.integers(1, 4), st.sampled_from([0.0, 0.6, -0.5]), st.booleans(), st.data())
def test_capturable_beam_search_equals_eager(in_place, problem, beam, alpha, stop_early, data):
    model, inputs, limits = problem
    options = dict(beam=beam, alpha=alpha, number=data.draw(st.integers(1, beam)), stop_early=stop_early)
    in_place(False)
    expected = beam_search(model, inputs, limits, **options)
    in_place(True)
    assert_same(beam_search(model, inputs, limits, **options), expected)


@given(problems(), st.sampled_from([None, (1.0, 0, 1.0), (0.7, 3, 1.0), (1.3, 0, 0.8)]), st.integers(0, 5))
def test_capturable_decoding_equals_eager(in_place, problem, sampling, prefix_length):
    model, inputs, limits = problem
    choose = greedy if sampling is None else Sampler(3, *sampling, sequence_ids=np.arange(len(limits)) + 5)
    prefix = torch.randint(4, V, (len(limits), prefix_length)) if prefix_length else None
    in_place(False)
    expected = greedy_or_sample(model, inputs, limits, choose, prefix=prefix)
    in_place(True)
    assert_same([greedy_or_sample(model, inputs, limits, choose, prefix=prefix)], [expected])


def test_reader_may_end_a_sequence_of_a_capturable_decoding(in_place):
    torch.manual_seed(1)
    model = Gpt(DecoderModel(kind="transformer", preset="tiny", width=8, heads=2, feed_forward=16, max_length=40), V).eval()
    special_tokens = SpecialTokens(bos=NO_TOKEN, eos=NO_TOKEN, prefix=(), suffix=(), suppressed=())
    in_place(True)
    rows = []
    for number, step in enumerate(
        decode_steps(model, None, torch.tensor([9, 9, 5]), prefix=torch.randint(4, V, (3, 4)), special_tokens=special_tokens)
    ):
        rows.append(step.rows.tolist())
        if number == 1:
            step.active[0] = False
    assert rows == [[0, 1, 2]] * 2 + [[1, 2]] * 3 + [[1]] * 4


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_capturable_decoding_may_fill_the_context(in_place, kind):
    """The last token is chosen, but never read: there is no position for it."""
    settings = {"width": 8, "heads": 2, "feed_forward": 16, "max_length": 12, "positions": {"kind": kind}}
    model = Gpt(DecoderModel(kind="transformer", preset="tiny", **settings), V).eval()
    special_tokens = SpecialTokens(bos=NO_TOKEN, eos=NO_TOKEN, prefix=(), suffix=(), suppressed=())
    found = []
    for captured in (False, True):
        in_place(captured)
        prefix = torch.arange(4, 8)[None]
        found.append(greedy_or_sample(model, None, torch.tensor([9]), prefix=prefix, special_tokens=special_tokens))
    assert len(found[0][0].tokens) == 8
    assert_same(found[1:], found[:1])


@pytest.mark.parametrize("search", [greedy_or_sample, lambda *given: beam_search(*given, beam=2)])
def test_capturable_search_reads_no_token_that_nothing_follows(in_place, search):
    """A source of 3 tokens and 5 output tokens: the encoder once, the decoder once for each output token."""
    model = Transformer(TransformerModel(preset="tiny", max_length=20), V, V).eval()
    with torch.no_grad():
        model.output.weight[EOS] -= 100
    steps, step = [], model.step
    model.step = lambda tokens, state: steps.append(tokens.shape) or step(tokens, state)
    in_place(True)
    search(model, (torch.randint(4, V, (2, 3)), torch.tensor([3, 3])), torch.tensor([5, 5]))
    assert len(steps) == 5


def test_captured_search_does_not_keep_the_model_alive(in_place):
    model = Transformer(TransformerModel(preset="tiny", max_length=20), V, V).eval()
    gone = weakref.ref(model)
    in_place(True)
    inputs = torch.randint(4, V, (2, 3)), torch.tensor([3, 2])
    beam_search(model, inputs, torch.tensor([5, 5]), beam=2)
    greedy_or_sample(model, inputs, torch.tensor([5, 5]), prefix=torch.randint(4, V, (2, 2)))
    assert len(CAPTURED) >= 2
    del model
    gc.collect()
    assert gone() is None


def test_long_searches_are_not_captured():
    cache, inputs = CudaGraphCache(), [torch.zeros(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "CudaGraphSearch", UncapturedSearch)
        found = {
            longest: [cache.find(longest, "kind", inputs, lambda buffers: "search") for _ in range(WARMUP_RUNS + 2)]
            for longest in (16, cuda_graphs.MAX_STEPS + 16)
        }
        *first, one, other = found[16]
        assert first == [None] * WARMUP_RUNS and one is other and one.search == "search"
        assert found[cuda_graphs.MAX_STEPS + 16] == [None] * (WARMUP_RUNS + 2)
        one.is_replaying = True  # somebody still reads its outputs
        assert cache.find(16, "kind", inputs, lambda buffers: "another") is None


def test_only_supported_models_are_captured():
    model = Transformer(TransformerModel(preset="tiny"), V, V)
    assert cuda_graph_cache(model.eval(), torch.device("cpu")) is None
    cuda = torch.device("cuda")
    assert cuda_graph_cache(model.train(), cuda) is None
    cache = cuda_graph_cache(model.eval(), cuda)
    assert cuda_graph_cache(model, cuda) is cache is not None
    model.double()  # graphs would read the old addresses
    assert cuda_graph_cache(model, cuda) is not cache
    handle = model.encoder.register_forward_hook(lambda *_: None)
    assert cuda_graph_cache(model, cuda) is None
    handle.remove()
    assert cuda_graph_cache(object(), cuda) is None


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [None, (0.8, 5, 0.9)])
@pytest.mark.parametrize("translator", TRANSLATORS, ids=["transformer", "universal"])
def test_captured_searches_equal_eager_ones(dtype, sampling, translator, in_place):
    in_place(False)  # the stand-in of the tests above never runs where there is a GPU
    torch.manual_seed(1)
    gpt = Gpt(DecoderModel(kind="transformer", preset="tiny", max_length=80), V).cuda().to(dtype).eval()
    transformer = translator(preset="tiny", tie="none", max_length=80).cuda().to(dtype).eval()
    special_tokens = SpecialTokens(bos=NO_TOKEN, eos=1, prefix=(), suffix=(), suppressed=(2,))
    for _ in range(WARMUP_RUNS + 3):
        prefix = torch.randint(4, V, (5, 7), device="cuda")
        choose = greedy if sampling is None else Sampler(7, *sampling)
        limits = torch.tensor([30, *torch.randint(1, 31, (4,)).tolist()], device="cuda")
        ids, lengths = torch.randint(4, V, (5, 6), device="cuda"), torch.randint(1, 7, (5,), device="cuda")
        found = [
            greedy_or_sample(gpt, None, limits, choose, prefix=prefix, special_tokens=special_tokens),
            greedy_or_sample(transformer, (ids, lengths), limits, choose, special_tokens=DEFAULT_SPECIAL_TOKENS),
            *beam_search(transformer, (ids, lengths), limits, beam=3, alpha=0.6, number=2),
        ]
        gpt.supports_cuda_graphs = transformer.supports_cuda_graphs = False
        expected = [
            greedy_or_sample(gpt, None, limits, choose, prefix=prefix, special_tokens=special_tokens),
            greedy_or_sample(transformer, (ids, lengths), limits, choose, special_tokens=DEFAULT_SPECIAL_TOKENS),
            *beam_search(transformer, (ids, lengths), limits, beam=3, alpha=0.6, number=2),
        ]
        gpt.supports_cuda_graphs = transformer.supports_cuda_graphs = True
        assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    assert len(CUDA_GRAPH_CACHES[gpt].searches) == 1 and len(CUDA_GRAPH_CACHES[transformer].searches) == 2


@on_a_gpu
def test_two_captured_decodings_may_be_read_in_turns(in_place):
    in_place(False)
    torch.manual_seed(1)
    model = Gpt(DecoderModel(kind="transformer", preset="tiny", max_length=80), V).cuda().eval()
    special_tokens, limits = (
        SpecialTokens(bos=NO_TOKEN, eos=1, prefix=(), suffix=(), suppressed=()),
        torch.full((2,), 20, device="cuda"),
    )
    prefixes = [torch.randint(4, V, (2, 5), device="cuda") for _ in range(2)]
    expected = [
        [step.tokens.tolist() for step in decode_steps(model, None, limits, prefix=prefix, special_tokens=special_tokens)]
        for prefix in prefixes
    ]
    for _ in range(WARMUP_RUNS + 1):
        both = [decode_steps(model, None, limits, prefix=prefix, special_tokens=special_tokens) for prefix in prefixes]
        found = [[], []]
        for pair in zip_longest(*both):
            for tokens, step in zip(found, pair):
                if step is not None:
                    tokens.append(step.tokens.tolist())
        assert found == expected
