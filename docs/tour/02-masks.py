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
