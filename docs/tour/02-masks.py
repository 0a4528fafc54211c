# %% [markdown]
# # Masking before the softmax
#
# A decoder generates from left to right: no word may attend to a later one. The scores of later words are set to −∞
# *before* the softmax,
#
# > w = softmax(s + m), where mᵢⱼ = 0 for j ≤ i, else −∞
#
# so that their weights are 0 and the weights of the earlier words still add up to one.

# %%
import torch

from regard.attention.core import attention_weights
from regard.attention.masks import Mask

torch.set_printoptions(precision=2, sci_mode=False)
later = float("nan")  # must not have any effect
scores = torch.tensor(
    [[0.11, later, later, later], [0.19, 0.53, later, later], [0.81, 0.21, 0.05, later], [0.51, 0.43, 0.12, 0.03]]
)


def masked(scores):
    """Return the causal attention weights of words with these scores (T, S)."""
    word = torch.zeros(1, 1, len(scores), 1)
    return attention_weights(word, word, score=lambda q, k: scores[None, None].clone(), mask=Mask(causal=True))[0, 0]


weights = masked(scores)
print(weights)

# %%
from helpers import figure

from regard.show.figures.matrix import attention_matrix

words = ["she", "saw", "the", "goat"]
figure(attention_matrix(weights.numpy(), words, words), "masked.svg")

# %% [markdown]
# The first word can only attend to itself; every row adds up to one; right of the diagonal all weights are 0.
#
# ## Padding and cross-attention
#
# Sentences of a batch have different lengths; the short ones are filled up with padding, which a *padding mask* hides
# from every query. In *cross-attention* the words of the target attend to those of the source: there is no order
# between the two sides, and only the padding of the source is hidden. In the decoder of a translator the *causal
# mask* holds between the words of the target. Dark cells are visible.

# %%
from regard.show.figures.teaching import mask_figure

source, target = ["she", "saw", "goats", "<pad>"], ["<s>", "sie", "sah"]
lengths = torch.tensor([3])  # of the source, without its padding


def visible(mask, queries, keys):
    """Return what a mask shows of each query (T, S)."""
    return mask.dense(len(queries), len(keys)).expand(1, 1, len(queries), len(keys))[0, 0].numpy()


masks = {
    "causal (decoder)": (visible(Mask(causal=True), target, target), target, target),
    "padding (encoder)": (visible(Mask(lengths=lengths), source, source), source, source),
    "cross (decoder to encoder)": (visible(Mask(lengths=lengths), target, source), target, source),
}
figure(mask_figure(masks), "masks.svg")

# %% [markdown]
# ## A misprint
#
# A widely used slide deck prints 0.48 0.52 for the second row, whose softmax is 0.42 0.58. The ratio of the two
# weights must be e^0.53 / e^0.19 = 1.40, but 0.52 / 0.48 is 1.08. The printed numbers are the softmax of a quarter of
# these scores, as if they had been divided by √16 once more between one slide and the next.

# %%
row = scores[1, :2]
print("softmax of the scores", row.softmax(0))
print("of a quarter of them ", (row / 4).softmax(0))

# %% [markdown]
# ## Why before
#
# If the mask is applied after the softmax, the weights of the past have been divided by a sum that includes the
# future: they do not add up to one, and they leak information about later words. Here is the second word with two
# different futures.

# %%
for future in (0.0, 2.0):
    all_scores = torch.where(scores.isnan(), future, scores)
    print(
        f"later scores {future:g}: masked before {masked(all_scores)[1, :2]},",
        f"masked after {all_scores.softmax(-1).tril()[1, :2]}",
    )

# %% [markdown]
# Masked before the softmax, the weights do not depend on what follows; masked after it, they do.

# %% [markdown]
# ## Exercises
#
# 1. What does a query attend to if every key is hidden from it?
# 2. A padding token has the score 50. How much weight do the words get?

# %%
words = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(1))
nothing = attention_weights(words, words, mask=Mask(lengths=torch.tensor([0])))
assert (nothing == 0).all()
print("1. to nothing: its weights are 0, not NaN, and so is its output")
padded = torch.tensor([0.5, 1.0, 50.0]).expand(1, 1, 3, 3)
hidden = attention_weights(words, words, score=lambda q, k: padded.clone(), mask=Mask(lengths=torch.tensor([2])))
assert torch.allclose(hidden[..., :2].sum(-1), torch.ones(1, 1, 3)) and (hidden[..., 2] == 0).all()
print("2. all of it: whatever the score of padding is, −∞ takes its place before the softmax")
