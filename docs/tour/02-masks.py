# %% [markdown]
# # Masking, before the softmax
#
# A decoder writes from left to right: no word may look at a later one. The scores of later words become −∞ *before*
# the softmax,
#
# > w = softmax(s + m), where mᵢⱼ = 0 for j ≤ i, else −∞
#
# so that their weights are 0 and those of the words before still add up to one.

# %%
import torch

from regard.attention.core import attention_weights
from regard.attention.masks import Mask

torch.set_printoptions(precision=2, sci_mode=False)
later = float("nan")  # whatever it is, it must not matter
scores = torch.tensor(
    [[0.11, later, later, later], [0.19, 0.53, later, later], [0.81, 0.21, 0.05, later], [0.51, 0.43, 0.12, 0.03]]
)


def masked(scores):
    """The weights of words with these scores (T, S), looking back alone."""
    word = torch.zeros(1, 1, len(scores), 1)
    return attention_weights(word, word, score=lambda q, k: scores[None, None].clone(), mask=Mask(causal=True))[0, 0]


weights = masked(scores)
print(weights)

# %%
from shown import picture

from regard.show.figures.matrix import attention_matrix

words = ["she", "saw", "the", "goat"]
picture(attention_matrix(weights.numpy(), words, words), "masked.svg")

# %% [markdown]
# The first word can only look at itself; every row adds up to one; right of the diagonal there is nothing.
#
# ## A misprint
#
# A deck in circulation prints 0.48 0.52 for the second row, whose softmax is 0.42 0.58. The two weights must be to
# each other as e^0.53 to e^0.19, which is 1.40, and 0.52 / 0.48 is 1.08. What is printed is the softmax of a quarter
# of these scores, as if they had been divided by √16 once more between one slide and the next.

# %%
row = scores[1, :2]
print("softmax of the scores", row.softmax(0))
print("of a quarter of them ", (row / 4).softmax(0))

# %% [markdown]
# ## Why before
#
# Masked after the softmax, the weights of the past have been divided by a sum that the future is part of: they do not
# add up to one, and they tell what is to come. Here is the second word before two futures.

# %%
for future in (0.0, 2.0):
    all_scores = torch.where(scores.isnan(), future, scores)
    print(
        f"later scores {future:g}: masked before {masked(all_scores)[1, :2]},",
        f"masked after {all_scores.softmax(-1).tril()[1, :2]}",
    )

# %% [markdown]
# Masked before, it is the same whatever follows; masked after, it is not.
