"""Laws of decoding, for any model that follows the state protocol."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.watch import watch
from regard.decoding.batching import batches_by_length, decode_all, make_search, num_workers
from regard.decoding.beam import BeamState, beam_search, is_done
from regard.decoding.greedy import decode_steps, greedy, greedy_or_sample
from regard.decoding.logits import apply_repetition_penalty
from regard.decoding.protocol import length_penalty
from regard.decoding.sampling import Sampler, exponential_times
from regard.models.transformer import Transformer
from regard.recipe import PositionSettings, TransformerModel
from regard.tokens.special_tokens import BOS, EOS, PAD, SpecialTokens

V = 11


@st.composite
def problems(draw, vocabulary=V, most=9):
    torch.manual_seed(draw(st.integers(0, 10_000)))
    kind = draw(st.sampled_from(["sinusoidal", "rotary", "relative"]))
    settings = TransformerModel(
        preset="tiny", width=8, heads=2, feed_forward=16, max_length=40, tie="none", positions=PositionSettings(kind=kind)
    )
    model = Transformer(settings, vocabulary, vocabulary).double().eval()
    with torch.no_grad():
        model.output.weight *= draw(st.sampled_from([1.0, 4.0]))  # flat and peaked distributions
        model.output.weight[EOS] += 0.1
    B, S = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    lengths = torch.tensor([draw(st.integers(1, S)) for _ in range(B)])
    limits = torch.tensor([draw(st.integers(1, most)) for _ in range(B)])
    return model, (torch.randint(4, vocabulary, (B, S)), lengths), limits


def rescore(model, inputs, row, tokens, prefix=(BOS,)):
    """log p of the output after its prefix, its end included, by one forward pass."""
    source, lengths = inputs[0][row : row + 1], inputs[1][row : row + 1]
    with torch.no_grad():
        log_p = model(source, lengths, torch.tensor([[*prefix, *tokens]])).log_softmax(-1)[0, len(prefix) - 1 :]
    return sum(float(log_p[i, token]) for i, token in enumerate([*tokens, EOS]))


@given(problems(), st.integers(1, 4), st.sampled_from([0.0, 0.6, 1.5, -0.5]))
def test_the_decoders_score_is_the_rescored_output(problem, beam, alpha):
    model, inputs, limits = problem
    for row, found in enumerate(beam_search(model, inputs, limits, beam=beam, alpha=alpha, number=beam)):
        assert found and found == sorted(found, key=lambda h: -h.score)
        assert len({tuple(h.tokens) for h in found}) == len(found)
        for h in found:
            assert len(h.tokens) + 1 <= limits[row] and not {PAD, BOS, EOS} & set(h.tokens)
            assert h.log_probability == pytest.approx(rescore(model, inputs, row, h.tokens), abs=1e-5)
            assert h.score == pytest.approx(h.log_probability / length_penalty(len(h.tokens) + 1, alpha), abs=1e-5)


@given(problems())
def test_beam_one_is_greedy(problem):
    model, inputs, limits = problem
    walked = greedy_or_sample(model, inputs, limits, greedy, alpha=0.6)
    beamed = beam_search(model, inputs, limits, beam=1, alpha=0.6)
    for row, (one, (other,)) in enumerate(zip(walked, beamed)):
        assert one.tokens == other.tokens
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-5)
        assert one.log_probability == pytest.approx(rescore(model, inputs, row, one.tokens), abs=1e-5)


@given(problems(), st.integers(1, 4), st.sampled_from([0.0, 0.6, 1.5, -0.5]))
def test_stopping_early_never_changes_the_best(problem, beam, alpha):
    model, inputs, limits = problem
    for number in {1, beam}:
        early = beam_search(model, inputs, limits, beam=beam, alpha=alpha, number=number)
        late = beam_search(model, inputs, limits, beam=beam, alpha=alpha, number=number, stop_early=False)
        assert [[h.tokens for h in found] for found in early] == [[h.tokens for h in found] for found in late]


def test_a_search_goes_on_while_a_longer_output_could_still_win():
    """With a length penalty, log p = -3 may end at -3 / penalty(50) = -0.1, and so beat a finished -1."""
    beams = BeamState.begin(torch.tensor([50, 3]), 1, EOS, alphas=[1.5, 1.5], numbers=[1, 1])
    beams.alive, beams.finished, beams.steps = torch.full((2, 1), -3.0), torch.full((2, 1), -1.0), torch.tensor([2, 2])
    assert is_done(beams).tolist() == [False, True]


@given(problems(), st.integers(1, 4))
def test_batched_equals_one_by_one(problem, beam):
    model, inputs, limits = problem
    together = beam_search(model, inputs, limits, beam=beam, alpha=0.6, number=beam)
    for row, length in enumerate(inputs[1].tolist()):
        sentence = inputs[0][row : row + 1, :length], inputs[1][row : row + 1]
        alone = beam_search(model, sentence, limits[row : row + 1], beam=beam, alpha=0.6, number=beam)
        assert [h.tokens for h in alone[0]] == [h.tokens for h in together[row]]


@given(problems(), st.integers(1, 3), st.data())
def test_outputs_go_on_from_prefixes_of_different_lengths(problem, beam, data):
    model, inputs, limits = problem
    prefixes = [[BOS, *data.draw(st.lists(st.integers(4, V - 1), max_size=3))] for _ in limits]
    padded = torch.tensor([[-1] * (max(map(len, prefixes)) - len(prefix)) + prefix for prefix in prefixes])
    found = beam_search(model, inputs, limits, beam=beam, alpha=0.6, prefix=padded)
    walked = greedy_or_sample(model, inputs, limits, greedy, prefix=padded)
    for row, prefix in enumerate(prefixes):
        for hypothesis in (found[row][0], walked[row]):
            assert hypothesis.log_probability == pytest.approx(rescore(model, inputs, row, hypothesis.tokens, prefix), abs=1e-5)
        alone = beam_search(
            model,
            (inputs[0][row : row + 1], inputs[1][row : row + 1]),
            limits[row : row + 1],
            beam=beam,
            alpha=0.6,
            prefix=torch.tensor([prefix]),
        )
        assert alone[0][0].tokens == found[row][0].tokens


@given(problems(vocabulary=6, most=4))
def test_a_beam_wide_enough_finds_the_best_of_all_outputs(problem):
    model, inputs, limits = problem
    found = beam_search(model, inputs, limits, beam=30, alpha=0.6)
    for row, (best, *_) in enumerate(found):
        outputs = [tokens for n in range(int(limits[row])) for tokens in itertools.product([3, 4, 5], repeat=n)]
        scores = {tokens: rescore(model, inputs, row, tokens) / length_penalty(len(tokens) + 1, 0.6) for tokens in outputs}
        assert best.score == pytest.approx(max(scores.values()), abs=1e-5)


@given(problems(), st.integers(0, 100))
def test_a_sample_does_not_depend_on_its_batch(problem, seed):
    model, inputs, limits = problem
    together = greedy_or_sample(model, inputs, limits, Sampler(seed=seed, sequence_ids=np.arange(len(limits))))
    for row, length in enumerate(inputs[1].tolist()):
        sentence = inputs[0][row : row + 1, :length], inputs[1][row : row + 1]
        alone = greedy_or_sample(model, sentence, limits[row : row + 1], Sampler(seed=seed, sequence_ids=np.array([row])))
        assert alone[0].tokens == together[row].tokens


def test_samples_follow_the_distribution_and_its_truncations():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = torch.arange(20_000)
    log_p = p.log().expand(len(rows), -1)

    def shares(**settings):
        drawn = Sampler(seed=3, **settings)(log_p, rows, 0)
        return torch.bincount(drawn, minlength=4) / len(rows)

    torch.testing.assert_close(shares(), p, atol=0.015, rtol=0)
    torch.testing.assert_close(shares(temperature=0.5), p.square() / p.square().sum(), atol=0.015, rtol=0)
    torch.testing.assert_close(shares(top_k=2), torch.tensor([0.625, 0.375, 0, 0]), atol=0.015, rtol=0)
    torch.testing.assert_close(shares(top_p=1e-320), torch.tensor([1.0, 0, 0, 0]))
    torch.testing.assert_close(shares(top_p=0.6), torch.tensor([0.625, 0.375, 0, 0]), atol=0.015, rtol=0)
    torch.testing.assert_close(shares(top_k=2, top_p=0.6), torch.tensor([1.0, 0, 0, 0]))  # of what top_k left
    torch.testing.assert_close(shares(top_p=0.01), torch.tensor([1.0, 0, 0, 0]), atol=0.0, rtol=0)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5}, {"top_k": 40}, {"top_p": 0.9}])
def test_rounding_does_not_change_what_is_drawn(settings):
    torch.manual_seed(0)
    logits, rows = 2 * torch.randn(2_000, 4_000), torch.arange(2_000)
    noisy = logits + 1e-5 * torch.randn_like(logits)
    drawn = [Sampler(seed=3, **settings)(given.log_softmax(-1), rows, 0) for given in (logits, noisy)]
    assert torch.equal(*drawn) and len(drawn[0].unique()) > 30


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
def test_a_token_alone_is_drawn_and_a_forbidden_one_never(seed, only):
    log_p = torch.full((50, 4), -torch.inf)
    log_p[:, only] = 0
    assert set(Sampler(seed=seed, temperature=1e-6)(log_p, torch.arange(50), 1).tolist()) == {only}


def key_of(bits):
    """The key by which token 0 draws these 64 bits: splitmix64 taken back."""

    def taken_back(z, by):
        x = z
        for _ in range(64 // by):
            x = z ^ (x >> by)
        return x

    state = taken_back(bits, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    state = taken_back(state, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    state = (taken_back(state, 30) - 0x9E3779B97F4A7C15) % 2**64
    return state - 2**64 if state >= 2**63 else state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_luckiest_and_the_unluckiest_draw_are_times_too(dtype):
    keys = torch.tensor([key_of(0), key_of(2**63), key_of(2**64 - 1)])
    lucky, middling, unlucky = exponential_times(keys, torch.zeros(1, 1).long(), dtype)[:, 0]
    assert 0 < lucky < 1e-15 and middling == pytest.approx(np.log(2)) and 16 < unlucky < torch.inf


def penalty(strength):
    return lambda logits, written: apply_repetition_penalty(logits, written, strength)


def said(found, limits, ends=None):
    """The tokens of each row; `ends` gives how many steps some rows are allowed."""
    tokens = [[] for _ in limits]
    for number, step in enumerate(found, start=1):
        for place, (row, token, _, _) in enumerate(step.each()):
            tokens[row].append(token)
            if ends and number == ends[row]:
                step.active[place] = False
    return tokens


@given(problems(), st.floats(0.5, 2.0), st.integers(0, 100), st.data())
def test_repeats_penalized_batched_equal_one_by_one_and_uncached(problem, strength, seed, data):
    model, inputs, limits = problem
    prefixes = [[BOS, *data.draw(st.lists(st.integers(4, V - 1), max_size=3))] for _ in limits]
    padded = torch.tensor([[-1] * (max(map(len, prefixes)) - len(prefix)) + prefix for prefix in prefixes])
    for choose in (lambda numbers: greedy, lambda numbers: Sampler(seed=seed, sequence_ids=np.array(numbers))):
        found = decode_steps(model, inputs, limits, choose(range(len(limits))), process=penalty(strength), prefix=padded)
        together = said(found, limits)
        for row, (prefix, length) in enumerate(zip(prefixes, inputs[1].tolist())):
            sentence = inputs[0][row : row + 1, :length], inputs[1][row : row + 1]
            alone = decode_steps(
                model, sentence, limits[row : row + 1], choose([row]), process=penalty(strength), prefix=torch.tensor([prefix])
            )
            assert said(alone, [0]) == [together[row]]
            for number, token in enumerate(together[row][:-1]):
                whole = torch.tensor([[*prefix, *together[row][:number]]])
                logits = apply_repetition_penalty(model(*sentence, whole)[:, -1], whole, strength)
                logits[:, [PAD, BOS]] = -torch.inf
                assert choose([row])(logits.log_softmax(-1), torch.tensor([0]), number).item() == token


@given(problems())
def test_a_penalty_changes_what_is_chosen_and_not_what_it_is_worth(problem):
    model, inputs, limits = problem
    totals, tokens = torch.zeros(len(limits), dtype=torch.float64), [[] for _ in limits]
    for step in decode_steps(model, inputs, limits, process=penalty(1.5)):
        totals[step.rows] += step.log_p
        for row, token, _, going in step.each():
            tokens[row] += [token] * going
    for row, total in enumerate(totals.tolist()):
        assert total == pytest.approx(rescore(model, inputs, row, tokens[row]), abs=1e-5)


@given(problems(), st.data())
def test_a_row_that_is_ended_is_not_computed_further_and_the_others_go_on(problem, data):
    model, inputs, limits = problem
    ends = [data.draw(st.integers(1, 10)) for _ in limits]
    whole, computed = said(decode_steps(model, inputs, limits), limits), []
    ended = said((computed.append(len(step.rows)) or step for step in decode_steps(model, inputs, limits)), limits, ends)
    assert ended == [tokens[:end] for tokens, end in zip(whole, ends)]
    assert computed == [sum(len(tokens) > number for tokens in ended) for number in range(len(computed))]


def test_steps_leave_gradients_as_they_were_between_and_after_them():
    model = Transformer(TransformerModel(preset="tiny", width=8, heads=2, feed_forward=16, max_length=40), V, V).eval()
    walking = decode_steps(model, (torch.tensor([[5, 6]]), torch.tensor([2])), torch.tensor([9]))
    assert not next(walking).log_p.requires_grad and torch.is_grad_enabled()
    walking.close()
    assert torch.is_grad_enabled() and next(walking, None) is None


@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 40))
def test_results_come_back_in_order_from_batches_within_budget(lengths, budget):
    sources = [[4 + i] * length for i, length in enumerate(lengths)]

    def search(inputs, limits, numbers):
        assert inputs[0].numel() <= max(budget, inputs[0].size(1))
        return [row[: length - 1].tolist() for row, length in zip(inputs[0], inputs[1])]

    assert decode_all(sources, search, batch_tokens=budget, device=torch.device("cpu"), most=50) == sources
    assert sorted(itertools.chain(*batches_by_length([len(s) for s in sources], budget))) == list(range(len(sources)))


@given(problems(), st.integers(1, 3), st.integers(2, 3))
def test_searches_side_by_side_find_what_one_finds(problem, beam, workers):
    """In any number of threads; the thread that asked computes with as many as before."""
    model, inputs, _ = problem
    sources = [row[:length].tolist() for row, length in zip(*inputs)] * 2
    options = dict(batch_tokens=100, device=torch.device("cpu"), most=20, max_tokens=6)
    before = torch.get_num_threads()
    alone, together = (
        decode_all(sources, make_search(model, beam=beam, alpha=0.6), workers=number, **options) for number in (1, workers)
    )
    assert [[h.tokens for h in found] for found in together] == [[h.tokens for h in found] for found in alone]
    assert torch.get_num_threads() == before


def test_a_watched_model_and_a_precision_of_this_thread_are_searched_in_it(monkeypatch):
    model = Transformer(TransformerModel(preset="tiny", width=8, heads=2, feed_forward=16, max_length=40), V, V).eval()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    cpu = torch.device("cpu")
    assert num_workers(model, cpu) == 2 and num_workers(model, torch.device("cuda")) == 1
    with watch(model):
        assert num_workers(model, cpu) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert num_workers(model, cpu) == 1


class Renamed:
    """The same model, its tokens called by other numbers."""

    def __init__(self, model, names):
        self.model, self.names = model, torch.tensor(names)

    def start(self, inputs, prefix=None, capacity=32):
        return self.model.start(inputs, self.names.argsort()[prefix], capacity)

    def step(self, tokens, state):
        logits, state = self.model.step(self.names.argsort()[tokens], state)
        return logits[..., self.names.argsort()], state


@given(problems(), st.permutations(range(V)), st.integers(1, 3))
def test_the_numbers_of_the_marks_do_not_matter(problem, names, beam):
    model, inputs, limits = problem
    marks = SpecialTokens(bos=names[BOS], eos=names[EOS], suppressed=(names[PAD], names[BOS]))
    renamed = Renamed(model, names)
    expected = [[names[token] for token in found[0].tokens] for found in beam_search(model, inputs, limits, beam=beam)]
    assert [found[0].tokens for found in beam_search(renamed, inputs, limits, beam=beam, special_tokens=marks)] == expected
    expected = [[names[token] for token in found.tokens] for found in greedy_or_sample(model, inputs, limits, greedy)]
    assert [found.tokens for found in greedy_or_sample(renamed, inputs, limits, greedy, special_tokens=marks)] == expected
