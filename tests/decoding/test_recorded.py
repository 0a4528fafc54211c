"""Searches in place say what searches say whose sentences leave; recorded, on a GPU, again and again."""

import gc
import weakref
from itertools import chain, zip_longest

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import beam as beams
from regard.decoding import cuda_graphs
from regard.decoding import greedy as walks
from regard.decoding.beam import beam_search
from regard.decoding.cuda_graphs import CUDA_GRAPH_CACHES, WARMUP_RUNS, CudaGraphCache, cuda_graph_cache
from regard.decoding.greedy import decode_steps, greedy, greedy_or_sample
from regard.decoding.sampling import Sampler
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.recipe import DecoderModel, TransformerModel
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, EOS, NO_TOKEN, SpecialTokens

V = 11
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@st.composite
def problems(draw):
    torch.manual_seed(draw(st.integers(0, 10_000)))
    settings = TransformerModel(preset="tiny", width=8, heads=2, feed_forward=16, max_length=40, tie="none")
    model = Transformer(settings, V, V).double().eval()
    with torch.no_grad():
        model.output.weight *= draw(st.sampled_from([1.0, 4.0]))
        model.output.weight[EOS] += 0.1  # texts that end before their limits
    B, S = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    lengths = torch.tensor([draw(st.integers(1, S)) for _ in range(B)])
    return model, (torch.randint(4, V, (B, S)), lengths), torch.tensor([draw(st.integers(1, 9)) for _ in range(B)])


class Unrecorded:
    """A tape that computes each step as it is asked for."""

    playing = False

    def __init__(self, search, places):
        self.search, self.places = search, places

    @torch.inference_mode()
    def play(self, given, most):
        self.search.begin()
        for _ in range(most):
            yield self.search.step()


KEPT = []


class Always:
    def find(self, longest, kind, given, build):
        hash((longest, kind))
        KEPT.append(Unrecorded(build(given), given))
        return KEPT[-1]


@pytest.fixture(scope="module", autouse=True)
def in_place():
    with pytest.MonkeyPatch.context() as patch:

        def switch(on):
            for module in (beams, walks):
                patch.setattr(module, "cuda_graph_cache", (lambda *_: Always()) if on else cuda_graph_cache)

        yield switch
    CUDA_GRAPH_CACHES.clear()


def assert_same(found, expected):
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
        assert one.score == pytest.approx(other.score, abs=1e-4)


@given(problems(), st.integers(1, 4), st.sampled_from([0.0, 0.6, -0.5]), st.booleans(), st.data())
def test_a_search_in_place_finds_the_same(in_place, problem, beam, alpha, stop_early, data):
    model, inputs, limits = problem
    options = dict(beam=beam, alpha=alpha, number=data.draw(st.integers(1, beam)), stop_early=stop_early)
    in_place(False)
    expected = beam_search(model, inputs, limits, **options)
    in_place(True)
    assert_same(beam_search(model, inputs, limits, **options), expected)


@given(problems(), st.sampled_from([None, (1.0, 0, 1.0), (0.7, 3, 1.0), (1.3, 0, 0.8)]), st.integers(0, 5))
def test_a_walk_in_place_says_the_same(in_place, problem, drawn, begun):
    model, inputs, limits = problem
    choose = greedy if drawn is None else Sampler(3, *drawn, sequence_ids=np.arange(len(limits)) + 5)
    prefix = torch.randint(4, V, (len(limits), begun)) if begun else None
    in_place(False)
    expected = greedy_or_sample(model, inputs, limits, choose, prefix=prefix)
    in_place(True)
    assert_same([greedy_or_sample(model, inputs, limits, choose, prefix=prefix)], [expected])


def test_who_reads_a_walk_in_place_may_end_a_sentence(in_place):
    torch.manual_seed(1)
    model = Gpt(DecoderModel(kind="transformer", preset="tiny", width=8, heads=2, feed_forward=16, max_length=40), V).eval()
    marks = SpecialTokens(bos=NO_TOKEN, eos=NO_TOKEN, prefix=(), suffix=(), suppressed=())
    in_place(True)
    told = []
    for number, step in enumerate(
        decode_steps(model, None, torch.tensor([9, 9, 5]), prefix=torch.randint(4, V, (3, 4)), special_tokens=marks)
    ):
        told.append(step.rows.tolist())
        if number == 1:
            step.active[0] = False
    assert told == [[0, 1, 2]] * 2 + [[1, 2]] * 3 + [[1]] * 4


def test_what_is_recorded_does_not_keep_the_model(in_place):
    model = Transformer(TransformerModel(preset="tiny", max_length=20), V, V).eval()
    gone = weakref.ref(model)
    in_place(True)
    inputs = torch.randint(4, V, (2, 3)), torch.tensor([3, 2])
    beam_search(model, inputs, torch.tensor([5, 5]), beam=2)
    greedy_or_sample(model, inputs, torch.tensor([5, 5]), prefix=torch.randint(4, V, (2, 2)))
    assert len(KEPT) >= 2
    del model
    gc.collect()
    assert gone() is None


def test_long_searches_are_not_recorded():
    tapes, asked = CudaGraphCache(), [torch.zeros(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "CudaGraphSearch", Unrecorded)
        found = {
            longest: [tapes.find(longest, "kind", asked, lambda places: "search") for _ in range(WARMUP_RUNS + 2)]
            for longest in (16, cuda_graphs.MAX_STEPS + 16)
        }
        *first, one, other = found[16]
        assert first == [None] * WARMUP_RUNS and one is other and one.search == "search"
        assert found[cuda_graphs.MAX_STEPS + 16] == [None] * (WARMUP_RUNS + 2)
        one.playing = True  # somebody is in the middle of it
        assert tapes.find(16, "kind", asked, lambda places: "another") is None


def test_only_what_can_be_recorded_is():
    model = Transformer(TransformerModel(preset="tiny"), V, V)
    assert cuda_graph_cache(model.eval(), torch.device("cpu")) is None
    cuda = torch.device("cuda")
    assert cuda_graph_cache(model.train(), cuda) is None
    tapes = cuda_graph_cache(model.eval(), cuda)
    assert cuda_graph_cache(model, cuda) is tapes is not None
    model.double()  # graphs would read where the weights were
    assert cuda_graph_cache(model, cuda) is not tapes
    handle = model.encoder.register_forward_hook(lambda *_: None)
    assert cuda_graph_cache(model, cuda) is None
    handle.remove()
    assert cuda_graph_cache(object(), cuda) is None


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("drawn", [None, (0.8, 5, 0.9)])
def test_recorded_walks_and_searches_say_what_they_said_before(dtype, drawn):
    torch.manual_seed(1)
    gpt = Gpt(DecoderModel(kind="transformer", preset="tiny", max_length=80), V).cuda().to(dtype).eval()
    transformer = Transformer(TransformerModel(preset="tiny", tie="none", max_length=80), V, V).cuda().to(dtype).eval()
    marks = SpecialTokens(bos=NO_TOKEN, eos=1, prefix=(), suffix=(), suppressed=(2,))
    for _ in range(WARMUP_RUNS + 3):
        prefix = torch.randint(4, V, (5, 7), device="cuda")
        choose = greedy if drawn is None else Sampler(7, *drawn)
        limits = torch.tensor([30, *torch.randint(1, 31, (4,)).tolist()], device="cuda")
        ids, lengths = torch.randint(4, V, (5, 6), device="cuda"), torch.randint(1, 7, (5,), device="cuda")
        found = [
            greedy_or_sample(gpt, None, limits, choose, prefix=prefix, special_tokens=marks),
            greedy_or_sample(transformer, (ids, lengths), limits, choose, special_tokens=DEFAULT_SPECIAL_TOKENS),
            *beam_search(transformer, (ids, lengths), limits, beam=3, alpha=0.6, number=2),
        ]
        gpt.supports_cuda_graphs = transformer.supports_cuda_graphs = False
        expected = [
            greedy_or_sample(gpt, None, limits, choose, prefix=prefix, special_tokens=marks),
            greedy_or_sample(transformer, (ids, lengths), limits, choose, special_tokens=DEFAULT_SPECIAL_TOKENS),
            *beam_search(transformer, (ids, lengths), limits, beam=3, alpha=0.6, number=2),
        ]
        gpt.supports_cuda_graphs = transformer.supports_cuda_graphs = True
        assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    assert len(CUDA_GRAPH_CACHES[gpt].tapes) == 1 and len(CUDA_GRAPH_CACHES[transformer].tapes) == 2


@on_a_gpu
def test_two_recorded_walks_may_be_read_in_turns():
    torch.manual_seed(1)
    model = Gpt(DecoderModel(kind="transformer", preset="tiny", max_length=80), V).cuda().eval()
    marks, limits = SpecialTokens(bos=NO_TOKEN, eos=1, prefix=(), suffix=(), suppressed=()), torch.full((2,), 20, device="cuda")
    prefixes = [torch.randint(4, V, (2, 5), device="cuda") for _ in range(2)]
    expected = [
        [step.tokens.tolist() for step in decode_steps(model, None, limits, prefix=prefix, special_tokens=marks)]
        for prefix in prefixes
    ]
    for _ in range(WARMUP_RUNS + 1):
        both = [decode_steps(model, None, limits, prefix=prefix, special_tokens=marks) for prefix in prefixes]
        found = [[], []]
        for pair in zip_longest(*both):
            for told, step in zip(found, pair):
                if step is not None:
                    told.append(step.tokens.tolist())
        assert found == expected
