# %% [markdown]
# # Scores and their scaling
#
# Attention compares a query with every key, turns the scores into weights that add up to one, and returns the mean of
# the values under these weights (Vaswani et al. 2017, eq. 1):
#
# > Attention(Q, K, V) = softmax(Q Kᵀ / √dₖ) V
#
# In the simplest form queries, keys and values are the words themselves: each word becomes a mean of all words,
# weighted by similarity.

# %%
import torch

from regard.attention.core import attention_weights

torch.set_printoptions(precision=2, sci_mode=False)
words = torch.tensor([[[2.0, 0.0], [1.8, 0.6], [0.0, 2.0]]])  # three words, two features
weights = attention_weights(words[:, None], words[:, None], scale=1.0)  # one head
print(weights[0, 0])

# %% [markdown]
# The first two words are similar and attend to each other; the third attends to itself.
#
# ## Why divide by √dₖ
#
# A dot product is a sum of dₖ terms, so it grows with the width. With dₖ = 64, this query and these two keys score
# 112 and 96; divided by √64 = 8, that is 14 and 12.

# %%
from regard.attention.core import DotProductScore

query = torch.ones(1, 1, 1, 64)
keys = torch.stack([torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)])[None, None]
for name, scale in (("q·k", 1.0), ("q·k / √64", None)):
    first, second = DotProductScore(scale)(query, keys).flatten().tolist()
    one, other = attention_weights(query, keys, scale=scale).flatten().tolist()
    print(f"{name:9}  scores {first:g}, {second:g}  weights {one:.2f}, {other:.2f}")

# %% [markdown]
# Unscaled, the second key has no influence. The gradient is a larger problem. A model learns from
#
# > ∂wᵢ / ∂sⱼ = wᵢ (1 − wᵢ) if i = j, else −wᵢ wⱼ
#
# and if one weight is 1 and the others are 0, all of these derivatives are 0.


# %%
def gradient(scores):
    """Return ∂ weights / ∂ scores, by automatic differentiation through the core."""

    def weights(given):
        return attention_weights(query, keys, score=lambda q, k: given)[0, 0, 0]

    return torch.autograd.functional.jacobian(weights, scores)[:, 0, 0, 0]


for scores in ((112, 96), (14, 12)):
    given = torch.tensor(scores, dtype=torch.float64)[None, None, None]
    (own, other), _ = gradient(given)
    print(f"{scores}: by its own score {own:+.3g}, by the other {other:+.3g}")

# %% [markdown]
# At 112 and 96 the gradient is a ten-millionth: it has vanished. At 14 and 12 it is a tenth; the factor 1/8 of the
# scaling itself costs little in comparison. This is not specific to the example. With random queries and keys, one
# query over eight keys, at growing widths:

# %%
from helpers import figure

from regard.show.figures.teaching import softmax_gradients


def max_derivative(width, scale):
    """Return max wᵢ (1 − wᵢ) of 500 queries, each over 8 keys."""
    generator = torch.Generator().manual_seed(width)
    q = torch.randn(500, 1, 1, width, generator=generator, dtype=torch.float64)
    k = torch.randn(500, 1, 8, width, generator=generator, dtype=torch.float64)
    weights = attention_weights(q, k, scale=scale)
    return (weights * (1 - weights)).amax(-1).flatten().tolist()


widths = [4, 16, 64, 256, 1024]
drawn = {name: [max_derivative(width, scale) for width in widths] for name, scale in (("q·k / √dₖ", None), ("q·k", 1.0))}
figure(softmax_gradients(widths, drawn), "gradients.svg")

# %% [markdown]
# Scaled, the gradient through the softmax does not depend on the width; unscaled, it falls with the width (the line is
# the median over the random queries, the band their interquartile range).

# %% [markdown]
# ## Exercises
#
# 1. Add 100 to both scores 14 and 12. What are the weights?
# 2. How far apart must two scores be for the smaller weight to fall below 1%?
#
# The answers are computed and checked in the next cell.

# %%
shifted = torch.tensor([114.0, 112.0]).softmax(0)
assert torch.allclose(shifted, torch.tensor([14.0, 12.0]).softmax(0))
print(f"1. {shifted[0]:.2f}, {shifted[1]:.2f}, as before: only differences of scores matter")
gap = torch.log(torch.tensor(99.0))
assert abs(torch.tensor([gap, 0.0]).softmax(0)[1] - 0.01) < 1e-6
print(f"2. {gap:.2f}: the ratio of two weights is e to the difference of their scores, and e^{gap:.2f} = 99")
