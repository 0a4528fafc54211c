# %% [markdown]
# # Masking, before the softmax
#
# A decoder writes from left to right: no word may look at a later one. The scores of later words become −∞ *before* the
# softmax,
#
# > w = softmax(s + m), where mᵢⱼ = 0 for j ≤ i, else −∞
#
# so that their weights are 0 and those of the words before still add up to one.

# %%
import math

import torch

from regard.attention.core import attention_weights
from regard.attention.masks import Mask

SCORES = torch.tensor([[0.11, math.nan, math.nan, math.nan],
                       [0.19, 0.53, math.nan, math.nan],
                       [0.81, 0.21, 0.05, math.nan],
                       [0.51, 0.43, 0.12, 0.03]])             # nobody says what the later ones are: it must not matter


def masked(scores):
    """The weights of four words with these scores (T, S), looking back alone."""
    nothing = torch.zeros(1, 1, len(scores), 1)
    return attention_weights(nothing, nothing, score=lambda q, k: scores[None, None].clone(), mask=Mask(causal=True))[0, 0]


weights = masked(SCORES)
for row in weights.tolist():
    print("  ".join(f"{weight:.2f}" for weight in row))

# %%
from shown import picture

from regard.pictures.alignment import alignment

words = ["she", "saw", "the", "goat"]
picture(alignment(weights.numpy(), words, words), "masked.svg")

# %% [markdown]
# The first word can only look at itself; every row adds up to one; above the diagonal there is nothing.
#
# ## A misprint
#
# A deck in circulation prints 0.48 0.52 for the second row. That is not its softmax: the two weights must be as e^0.53
# to e^0.19, which is 1.40 to 1, and 0.52 to 0.48 is 1.08 to 1. It is the softmax of a quarter of these scores, as if
# they had been divided by √16 once more between one slide and the next.

# %%
second = SCORES[1, :2]
print("the ratio should be", f"{math.exp(0.53 - 0.19):.2f}", "and in print is", f"{0.52 / 0.48:.2f}")
print("true softmax       ", "  ".join(f"{weight:.2f}" for weight in second.softmax(0)))
print("of a quarter       ", "  ".join(f"{weight:.2f}" for weight in (second / 4).softmax(0)))

# %% [markdown]
# ## Why before
#
# Masked after the softmax, the weights of the past have been divided by a sum that the future is part of: they do not
# add up to one, and they tell what is to come. Here are two futures that differ.

# %%
for future in (0.0, 2.0):
    scores = torch.where(SCORES.isnan(), future, SCORES)
    after = scores.softmax(-1).tril()
    print(f"later scores {future:g}:  masked before", *(f"{weight:.2f}" for weight in masked(scores)[1, :2]),
          "  masked after", *(f"{weight:.2f}" for weight in after[1, :2]))

# %% [markdown]
# Masked before, the second word is the same whatever follows, to the bit; masked after, it is not.

# %%
assert torch.equal(masked(torch.where(SCORES.isnan(), 0.0, SCORES)), masked(torch.where(SCORES.isnan(), 2.0, SCORES)))
