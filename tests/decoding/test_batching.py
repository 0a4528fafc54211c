"""Laws of decoding many sources: order, budget and workers do not change the outputs."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.watch import watch
from regard.decoding import batching
from regard.decoding.batching import SearchParams, batches_by_length, decode_all, num_workers, search, text_sources
from regard.decoding.continuous_batching import ContinuousBatcher, DecodingRequest
from regard.decoding.sampling import SamplingParams
from regard.models.transformer import Transformer
from regard.recipe import TransformerModel
from regard.tokens.special_tokens import EOS

V, CPU = 11, torch.device("cpu")
SETTINGS = TransformerModel(preset="tiny", width=8, heads=2, feed_forward=16, max_length=40, tie="none")


@st.composite
def models_and_sources(draw):
    torch.manual_seed(draw(st.integers(0, 10_000)))
    model = Transformer(SETTINGS, V, V).double().eval()
    with torch.no_grad():
        model.output.weight *= draw(st.sampled_from([1.0, 4.0]))  # flat and peaked distributions
        model.output.weight[EOS] += 0.1
    ids = draw(st.lists(st.lists(st.integers(4, V - 1), min_size=1, max_size=6), min_size=1, max_size=8))
    return model, text_sources(ids, device=CPU, max_length=20, max_tokens=6)


@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 40))
def test_decode_all_returns_results_in_order_from_batches_within_budget(lengths, budget):
    ids = [[4 + i] * length for i, length in enumerate(lengths)]

    def copy_source(model, inputs, limits, params, sequence_ids, special_tokens, prefix):
        assert inputs[0].numel() <= max(budget, inputs[0].size(1))
        return [row[: length - 1].tolist() for row, length in zip(inputs[0], inputs[1])]

    sources = text_sources(ids, device=CPU, max_length=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "search", copy_source)
        assert decode_all(None, sources, SearchParams(batch_tokens=budget), device=CPU) == ids
    assert sorted(itertools.chain(*batches_by_length(lengths, budget))) == list(range(len(ids)))


@given(models_and_sources(), st.integers(1, 3), st.integers(2, 3))
def test_several_workers_find_what_one_finds(problem, beam, workers):
    """In any number of threads; the calling thread keeps its number of threads."""
    model, sources = problem
    params = SearchParams(beam=beam, length_penalty=0.6, batch_tokens=100 * beam)
    before = torch.get_num_threads()
    one, many = (decode_all(model, sources, params, device=CPU, workers=number) for number in (1, workers))
    assert [[h.tokens for h in found] for found in many] == [[h.tokens for h in found] for found in one]
    assert torch.get_num_threads() == before


@given(models_and_sources(), st.sampled_from([1, 3]), st.sampled_from([None, 0.8]))
def test_continuous_batching_finds_what_decode_all_finds(problem, beam, temperature):
    model, sources = problem
    sampling = None if temperature is None else SamplingParams(temperature=temperature, top_k=5, seed=3)
    params = SearchParams(beam=beam, length_penalty=0.6, num_hypotheses=beam if sampling is None else 1, sampling=sampling)
    expected = decode_all(model, sources, params, device=CPU)
    requests = [DecodingRequest.from_source(sources, params, index=i, sequence_id=i) for i in range(len(sources.lengths))]
    batcher = ContinuousBatcher(model, CPU)
    batcher.add(requests)
    while len(batcher):
        batcher.step()
    assert [[h.tokens for h in request.hypotheses] for request in requests] == [[h.tokens for h in found] for found in expected]


def test_search_params_choose_the_search():
    model, sources = Transformer(SETTINGS, V, V).eval(), text_sources([[5, 6], [7]], device=CPU, max_length=20)
    limits = torch.tensor(sources.limits)

    def find(**params):
        return search(model, sources.collate([0, 1]), limits, SearchParams(**params), np.arange(2))

    assert [len(found) for found in find(beam=4, num_hypotheses=3)] == [3, 3]
    sampled = find(beam=4, sampling=SamplingParams(temperature=1.0, seed=1))
    assert [len(found) for found in sampled] == [1, 1] and sampled != find(beam=1)


def test_watched_model_and_autocast_use_one_worker(monkeypatch):
    model = Transformer(SETTINGS, V, V).eval()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert num_workers(model, CPU) == 2 and num_workers(model, torch.device("cuda")) == 1
    with watch(model):
        assert num_workers(model, CPU) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert num_workers(model, CPU) == 1
