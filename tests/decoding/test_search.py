"""Laws of greedy search, sampling and beam search, for any model that follows the state protocol."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.beam import BeamState, beam_search, is_done
from regard.decoding.greedy import decode_steps, greedy_or_sample
from regard.decoding.protocol import length_penalty
from regard.decoding.sampling import Sampler, apply_repetition_penalty, greedy
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
def test_beam_search_score_equals_rescored_output(problem, beam, alpha):
    model, inputs, limits = problem
    for row, found in enumerate(beam_search(model, inputs, limits, beam=beam, alpha=alpha, number=beam)):
        assert found and found == sorted(found, key=lambda h: -h.score)
        assert len({tuple(h.tokens) for h in found}) == len(found)
        for h in found:
            assert len(h.tokens) + 1 <= limits[row] and not {PAD, BOS, EOS} & set(h.tokens)
            assert h.log_probability == pytest.approx(rescore(model, inputs, row, h.tokens), abs=1e-5)
            assert h.score == pytest.approx(h.log_probability / length_penalty(len(h.tokens) + 1, alpha), abs=1e-5)


@given(problems())
def test_beam_search_equals_greedy_with_one_beam(problem):
    model, inputs, limits = problem
    greedy_outputs = greedy_or_sample(model, inputs, limits, greedy, alpha=0.6)
    beam_outputs = beam_search(model, inputs, limits, beam=1, alpha=0.6)
    for row, (one, (other,)) in enumerate(zip(greedy_outputs, beam_outputs)):
        assert one.tokens == other.tokens
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-5)
        assert one.log_probability == pytest.approx(rescore(model, inputs, row, one.tokens), abs=1e-5)


@given(problems(), st.integers(1, 4), st.sampled_from([0.0, 0.6, 1.5, -0.5]))
def test_early_stopping_does_not_change_the_best_hypotheses(problem, beam, alpha):
    model, inputs, limits = problem
    for number in {1, beam}:
        early = beam_search(model, inputs, limits, beam=beam, alpha=alpha, number=number)
        late = beam_search(model, inputs, limits, beam=beam, alpha=alpha, number=number, stop_early=False)
        assert [[h.tokens for h in found] for found in early] == [[h.tokens for h in found] for found in late]


def test_search_continues_while_a_longer_output_can_still_win():
    """With a length penalty, log p = -3 may end at -3 / penalty(50) = -0.1, and so beat a finished -1."""
    beams = BeamState.start(torch.tensor([50, 3]), 1, EOS, alphas=[1.5, 1.5], numbers=[1, 1])
    beams.alive, beams.finished, beams.steps = torch.full((2, 1), -3.0), torch.full((2, 1), -1.0), torch.tensor([2, 2])
    assert is_done(beams).tolist() == [False, True]


@given(problems(), st.integers(1, 4))
def test_batched_beam_search_equals_one_by_one(problem, beam):
    model, inputs, limits = problem
    together = beam_search(model, inputs, limits, beam=beam, alpha=0.6, number=beam)
    for row, length in enumerate(inputs[1].tolist()):
        sentence = inputs[0][row : row + 1, :length], inputs[1][row : row + 1]
        alone = beam_search(model, sentence, limits[row : row + 1], beam=beam, alpha=0.6, number=beam)
        assert [h.tokens for h in alone[0]] == [h.tokens for h in together[row]]


@given(problems(), st.integers(1, 3), st.data())
def test_prefixes_of_different_lengths(problem, beam, data):
    model, inputs, limits = problem
    prefixes = [[BOS, *data.draw(st.lists(st.integers(4, V - 1), max_size=3))] for _ in limits]
    padded = torch.tensor([[-1] * (max(map(len, prefixes)) - len(prefix)) + prefix for prefix in prefixes])
    found = beam_search(model, inputs, limits, beam=beam, alpha=0.6, prefix=padded)
    greedy_outputs = greedy_or_sample(model, inputs, limits, greedy, prefix=padded)
    for row, prefix in enumerate(prefixes):
        for hypothesis in (found[row][0], greedy_outputs[row]):
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
def test_wide_beam_finds_the_best_of_all_outputs(problem):
    model, inputs, limits = problem
    found = beam_search(model, inputs, limits, beam=30, alpha=0.6)
    for row, (best, *_) in enumerate(found):
        outputs = [tokens for n in range(int(limits[row])) for tokens in itertools.product([3, 4, 5], repeat=n)]
        scores = {tokens: rescore(model, inputs, row, tokens) / length_penalty(len(tokens) + 1, 0.6) for tokens in outputs}
        assert best.score == pytest.approx(max(scores.values()), abs=1e-5)


@given(problems(), st.integers(0, 100))
def test_sample_does_not_depend_on_its_batch(problem, seed):
    model, inputs, limits = problem
    together = greedy_or_sample(model, inputs, limits, Sampler(seed=seed, sequence_ids=np.arange(len(limits))))
    for row, length in enumerate(inputs[1].tolist()):
        sentence = inputs[0][row : row + 1, :length], inputs[1][row : row + 1]
        alone = greedy_or_sample(model, sentence, limits[row : row + 1], Sampler(seed=seed, sequence_ids=np.array([row])))
        assert alone[0].tokens == together[row].tokens


def penalize(penalty):
    return lambda logits, generated: apply_repetition_penalty(logits, generated, penalty)


def decoded_tokens(steps, limits, ends=None):
    """The tokens of each row; `ends` gives how many steps some rows are allowed."""
    tokens = [[] for _ in limits]
    for number, step in enumerate(steps, start=1):
        for place, (row, token, _, _) in enumerate(step.items()):
            tokens[row].append(token)
            if ends and number == ends[row]:
                step.active[place] = False
    return tokens


@given(problems(), st.floats(0.5, 2.0), st.integers(0, 100), st.data())
def test_repetition_penalty_batched_equals_one_by_one_and_uncached(problem, penalty, seed, data):
    model, inputs, limits = problem
    prefixes = [[BOS, *data.draw(st.lists(st.integers(4, V - 1), max_size=3))] for _ in limits]
    padded = torch.tensor([[-1] * (max(map(len, prefixes)) - len(prefix)) + prefix for prefix in prefixes])
    for choose in (lambda sequence_ids: greedy, lambda sequence_ids: Sampler(seed=seed, sequence_ids=np.array(sequence_ids))):
        found = decode_steps(model, inputs, limits, choose(range(len(limits))), process=penalize(penalty), prefix=padded)
        together = decoded_tokens(found, limits)
        for row, (prefix, length) in enumerate(zip(prefixes, inputs[1].tolist())):
            sentence = inputs[0][row : row + 1, :length], inputs[1][row : row + 1]
            alone = decode_steps(
                model, sentence, limits[row : row + 1], choose([row]), process=penalize(penalty), prefix=torch.tensor([prefix])
            )
            assert decoded_tokens(alone, [0]) == [together[row]]
            for number, token in enumerate(together[row][:-1]):
                whole = torch.tensor([[*prefix, *together[row][:number]]])
                logits = apply_repetition_penalty(model(*sentence, whole)[:, -1], whole, penalty)
                logits[:, [PAD, BOS]] = -torch.inf
                assert choose([row])(logits.log_softmax(-1), torch.tensor([0]), number).item() == token


@given(problems())
def test_repetition_penalty_does_not_change_reported_log_probabilities(problem):
    model, inputs, limits = problem
    totals, tokens = torch.zeros(len(limits), dtype=torch.float64), [[] for _ in limits]
    for step in decode_steps(model, inputs, limits, process=penalize(1.5)):
        totals[step.rows] += step.log_p
        for row, token, _, active in step.items():
            tokens[row] += [token] * active
    for row, total in enumerate(totals.tolist()):
        assert total == pytest.approx(rescore(model, inputs, row, tokens[row]), abs=1e-5)


@given(problems(), st.data())
def test_row_ended_by_the_reader_is_not_computed_further(problem, data):
    model, inputs, limits = problem
    ends = [data.draw(st.integers(1, 10)) for _ in limits]
    whole, computed = decoded_tokens(decode_steps(model, inputs, limits), limits), []
    ended = decoded_tokens(
        (computed.append(len(step.rows)) or step for step in decode_steps(model, inputs, limits)), limits, ends
    )
    assert ended == [tokens[:end] for tokens, end in zip(whole, ends)]
    assert computed == [sum(len(tokens) > number for tokens in ended) for number in range(len(computed))]


def test_decode_steps_restore_grad_mode_between_steps():
    model = Transformer(TransformerModel(preset="tiny", width=8, heads=2, feed_forward=16, max_length=40), V, V).eval()
    steps = decode_steps(model, (torch.tensor([[5, 6]]), torch.tensor([2])), torch.tensor([9]))
    assert not next(steps).log_p.requires_grad and torch.is_grad_enabled()
    steps.close()
    assert torch.is_grad_enabled() and next(steps, None) is None


class Renamed:
    """The same model, its tokens called by other sequence_ids."""

    def __init__(self, model, names):
        self.model, self.names = model, torch.tensor(names)

    def start(self, inputs, prefix=None, capacity=32):
        return self.model.start(inputs, self.names.argsort()[prefix], capacity)

    def step(self, tokens, state):
        logits, state = self.model.step(self.names.argsort()[tokens], state)
        return logits[..., self.names.argsort()], state


@given(problems(), st.permutations(range(V)), st.integers(1, 3))
def test_ids_of_special_tokens_do_not_matter(problem, names, beam):
    model, inputs, limits = problem
    special_tokens = SpecialTokens(bos=names[BOS], eos=names[EOS], suppressed=(names[PAD], names[BOS]))
    renamed = Renamed(model, names)
    expected = [[names[token] for token in found[0].tokens] for found in beam_search(model, inputs, limits, beam=beam)]
    assert [
        found[0].tokens for found in beam_search(renamed, inputs, limits, beam=beam, special_tokens=special_tokens)
    ] == expected
    expected = [[names[token] for token in found.tokens] for found in greedy_or_sample(model, inputs, limits, greedy)]
    assert [
        found.tokens for found in greedy_or_sample(renamed, inputs, limits, greedy, special_tokens=special_tokens)
    ] == expected
