"""Heads named by where they look."""

import pytest
import torch
from torch import nn

from regard.attention.multihead import MultiHeadAttention
from regard.explain.heads import (
    MIXED,
    KeyChoice,
    assign_roles,
    head_choices,
    head_importance,
    patch_relations,
    prune_heads,
    token_relations,
    without,
)


class Looking(nn.Module):
    """One attention whose heads look where they are told."""

    def __init__(self, patterns):
        super().__init__()
        self.self_attention = MultiHeadAttention(8, len(patterns), key_width=6, value_width=4)
        self.patterns = patterns

    def forward(self, source):
        x = torch.zeros(1, source.size(1), 8)
        _, values = self.self_attention.project_kv(x + 1)
        wanted = torch.stack([pattern(source[0]) for pattern in self.patterns])[None]  # (1, H, T, S)
        T = source.size(1)
        q = torch.eye(T).expand(1, len(self.patterns), T, T)
        return self.self_attention.attend(30 * q @ wanted, torch.eye(T).expand(1, len(self.patterns), T, T), values)


def after(ids):
    return torch.diag(torch.ones(len(ids) - 1), 1)


def same(ids):
    return (ids[:, None] == ids).float() - torch.eye(len(ids))


def mark(ids):
    return (ids == 2).float().expand(len(ids), -1)


def everywhere(ids):
    return torch.zeros(len(ids), len(ids))


TEXTS = [torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 2]]), torch.tensor([[9, 4, 9, 4, 2]])]


def sentences():
    return [({"source": ids}, {"source": token_relations(ids[0], [2])}) for ids in TEXTS]


def test_heads_get_the_names_of_what_they_do():
    patterns = [after, lambda ids: after(ids).T, same, mark, everywhere]
    heads = assign_roles(Looking(patterns), sentences())
    assert [head.does for head in heads] == ["next word", "previous word", "same word", "separator", MIXED]
    assert all(head.shares[head.does][0] > 0.8 for head in heads[:3])
    for share, lot in heads[4].shares.values():
        assert share == pytest.approx(lot)  # a head that looks everywhere is one by lot


def test_a_head_is_right_when_what_is_meant_gets_the_most_weight():
    """Of groups of keys, asked from one query; who looks everywhere alike has chosen nothing."""
    patterns = [after, lambda ids: after(ids).T, everywhere]
    right = {"source": KeyChoice(1, ((2,), (0, 3)), 0)}  # the next word, of it and two others
    wrong = {"source": KeyChoice(1, ((2,), (0, 3)), 1)}
    found = head_choices(
        Looking(patterns), [({"source": TEXTS[0]}, right), ({"source": TEXTS[1]}, wrong), ({"source": TEXTS[1]}, {})]
    )
    assert list(found.values()) == [[True, False], [False, True], [False, True]]  # a group of two weighs more, where all is alike
    tie = {"source": KeyChoice(1, ((2,), (0,)), 0)}
    assert head_choices(Looking(patterns), [({"source": TEXTS[0]}, tie)])["self_attention", 2] == [False]


def test_similar_words_are_near_and_not_the_same():
    vectors = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [1, 0]])
    similar = token_relations(torch.tensor([5, 6, 7, 5]), [2], vectors)["similar word"]
    assert similar.tolist() == [[False, True, False, False], [True, False, False, True], [False] * 4, [False, True, False, False]]


def test_what_is_lost_without_a_head_is_the_written_out_difference(kinds):
    target = kinds["translator"]()
    heads = [(f"decoder.blocks.{layer}.cross_attention", head) for layer in range(2) for head in range(2)]

    def loss():
        return -float(target.whole())

    lost = head_importance(target.model, heads, loss)
    place = target.model.decoder.blocks[1].cross_attention
    before, kept = loss(), place.out_proj.weight.detach().clone()
    with torch.no_grad():
        place.out_proj.weight[:, 4:] = 0  # what head 1 says is not heard
    assert lost[heads[3]] == pytest.approx(loss() - before)
    with torch.no_grad():
        place.out_proj.weight.copy_(kept)
    pruned = prune_heads(target.model, lost, [0.0, 0.25, 1.0], loss)
    with without(target.model, heads):
        assert pruned[1.0] == pytest.approx(loss())
    assert pruned[0.0] == pytest.approx(before) and pruned[0.25] == pytest.approx(before + min(lost.values()))
    assert loss() == before


def test_patches_are_beside_one_another_and_marks_are_not():
    found = patch_relations((2, 3), 1, named=[4])
    assert found["same patch"].nonzero().tolist() == [[i, i] for i in range(1, 7)]
    assert found["patch beside it"][1].nonzero().flatten().tolist() == [2, 4, 5]  # right, below, and aslant
    assert found["patch beside it"].sum(1).tolist() == [0, 3, 5, 3, 3, 5, 3]
    assert found["mark"][:, 0].all() and not found["mark"][:, 1:].any()
    assert found["what is named"][:, 5].all() and found["what is named"].sum() == 7
