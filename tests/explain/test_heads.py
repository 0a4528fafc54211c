"""Roles of heads, head ablation and pruning."""

import pytest
import torch
from torch import nn

from regard.attention.multihead import MultiHeadAttention
from regard.explain.heads import (
    MIXED,
    KeyChoice,
    ablate_heads,
    assign_roles,
    head_choices,
    head_importance,
    patch_relations,
    prune_heads,
    token_relations,
)


class PatternAttention(nn.Module):
    """One attention whose heads follow given patterns."""

    def __init__(self, patterns):
        super().__init__()
        self.self_attention = MultiHeadAttention(8, len(patterns), key_width=6, value_width=4)
        self.patterns = patterns

    def forward(self, source):
        x = torch.zeros(1, source.size(1), 8)
        _, values = self.self_attention.project_kv(x + 1)
        pattern = torch.stack([make(source[0]) for make in self.patterns])[None]  # (1, H, T, S)
        T = source.size(1)
        q = torch.eye(T).expand(1, len(self.patterns), T, T)
        return self.self_attention.attend(30 * q @ pattern, torch.eye(T).expand(1, len(self.patterns), T, T), values)


def after(ids):
    return torch.diag(torch.ones(len(ids) - 1), 1)


def same(ids):
    return (ids[:, None] == ids).float() - torch.eye(len(ids))


def special(ids):
    return (ids == 2).float().expand(len(ids), -1)


def uniform(ids):
    return torch.zeros(len(ids), len(ids))


TEXTS = [torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 2]]), torch.tensor([[9, 4, 9, 4, 2]])]


def sentences():
    return [({"source": ids}, {"source": token_relations(ids[0], [2])}) for ids in TEXTS]


def test_heads_get_the_role_of_their_pattern():
    patterns = [after, lambda ids: after(ids).T, same, special, uniform]
    heads = assign_roles(PatternAttention(patterns), sentences())
    assert [head.role for head in heads] == ["next word", "previous word", "same word", "separator", MIXED]
    assert all(head.weights[head.role][0] > 0.8 for head in heads[:3])
    for weight, chance in heads[4].weights.values():
        assert weight == pytest.approx(chance)  # uniform attention is at chance


def test_head_choice_is_correct_when_the_correct_group_gets_the_most_weight():
    """Uniform attention prefers the larger group, and a tie is not correct."""
    patterns = [after, lambda ids: after(ids).T, uniform]
    right = {"source": KeyChoice(1, ((2,), (0, 3)), 0)}  # the next word, of it and two others
    wrong = {"source": KeyChoice(1, ((2,), (0, 3)), 1)}
    found = head_choices(
        PatternAttention(patterns), [({"source": TEXTS[0]}, right), ({"source": TEXTS[1]}, wrong), ({"source": TEXTS[1]}, {})]
    )
    assert list(found.values()) == [[True, False], [False, True], [False, True]]  # uniform: a group of two weighs more
    tie = {"source": KeyChoice(1, ((2,), (0,)), 0)}
    assert head_choices(PatternAttention(patterns), [({"source": TEXTS[0]}, tie)])["self_attention", 2] == [False]


def test_similar_words_are_near_and_not_equal():
    vectors = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [1, 0]])
    similar = token_relations(torch.tensor([5, 6, 7, 5]), [2], vectors)["similar word"]
    assert similar.tolist() == [[False, True, False, False], [True, False, False, True], [False] * 4, [False, True, False, False]]


def test_head_importance_equals_zeroing_the_output_projection(kinds):
    target = kinds["translator"]()
    heads = [(f"decoder.blocks.{layer}.cross_attention", head) for layer in range(2) for head in range(2)]

    def loss():
        return -float(target.full_score())

    lost = head_importance(target.model, heads, loss)
    module = target.model.decoder.blocks[1].cross_attention
    before, kept = loss(), module.out_proj.weight.detach().clone()
    with torch.no_grad():
        module.out_proj.weight[:, 4:] = 0  # the output of head 1
    assert lost[heads[3]] == pytest.approx(loss() - before)
    with torch.no_grad():
        module.out_proj.weight.copy_(kept)
    pruned = prune_heads(target.model, lost, [0.0, 0.25, 1.0], loss)
    with ablate_heads(target.model, heads):
        assert pruned[1.0] == pytest.approx(loss())
    assert pruned[0.0] == pytest.approx(before) and pruned[0.25] == pytest.approx(before + min(lost.values()))
    assert loss() == before


def test_patch_relations_of_neighbours_and_special_tokens():
    found = patch_relations((2, 3), 1, named=[4])
    assert found["same patch"].nonzero().tolist() == [[i, i] for i in range(1, 7)]
    assert found["neighbouring patch"][1].nonzero().flatten().tolist() == [2, 4, 5]  # right, below, and diagonal
    assert found["neighbouring patch"].sum(1).tolist() == [0, 3, 5, 3, 3, 5, 3]
    assert found["special token"][:, 0].all() and not found["special token"][:, 1:].any()
    assert found["named object"][:, 5].all() and found["named object"].sum() == 7
