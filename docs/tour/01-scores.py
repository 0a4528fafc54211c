# %% [markdown]
# # Scores, and why they are scaled
#
# Attention asks with a query, compares it with every key, turns the scores into weights that add up to one, and answers
# with the mean of the values under these weights (Vaswani et al. 2017, eq. 1):
#
# > Attention(Q, K, V) = softmax(Q Kᵀ / √dₖ) V
#
# In its plainest form queries, keys and values are the words themselves: each becomes a mean of all, by likeness.

# %%
import torch

from regard.attention.plain import self_attention

words = torch.tensor([[[2.0, 0.0], [1.8, 0.6], [0.0, 2.0]]])          # one sentence, three words, two features
mixed, weights = self_attention(words, weights=True)
for row in weights[0].tolist():
    print("  ".join(f"{weight:.2f}" for weight in row))

# %% [markdown]
# The first two words are alike and look at each other; the third looks at itself.
#
# ## Why divide by √dₖ
#
# A dot product is a sum of dₖ terms, so it grows with the width. With dₖ = 64, this query and these two keys score 112
# and 96; divided by √64 = 8, that is 14 and 12.

# %%
from regard.attention.core import attention_weights, dot

query = torch.ones(1, 1, 1, 64, dtype=torch.float64)
keys = torch.stack([torch.full((64,), 1.75), torch.full((64,), 1.5)]).double()[None, None]
for name, scale in (("q·k", 1.0), ("q·k / √64", None)):
    scores, weights = dot(scale)(query, keys).flatten(), attention_weights(query, keys, scale=scale).flatten()
    print(f"{name:10}  scores {scores[0]:g}, {scores[1]:g}   weights {weights[0]:.2f}, {weights[1]:.2f}")

# %% [markdown]
# Scaled, the second key still counts. But the weights are not the worst of it: what the model can learn from is their
# gradient,
#
# > ∂wᵢ / ∂sⱼ = wᵢ (1 − wᵢ) if i = j, else −wᵢ wⱼ
#
# and where one weight is 1 and the others are 0, all of that is 0.

# %%
def gradient(scores):
    """∂ weights / ∂ scores, by automatic differentiation through the core."""
    def weights(given):
        return attention_weights(query, keys, score=lambda q, k: given[None, None, None]).flatten()
    return torch.autograd.functional.jacobian(weights, torch.tensor(scores, dtype=torch.float64))


for scores in ([112.0, 96.0], [14.0, 12.0]):
    print(f"at {scores[0]:g}, {scores[1]:g}:")
    for row in gradient(scores).tolist():
        print("   ", "  ".join(f"{value:+.3g}" for value in row))

# %% [markdown]
# At 112 and 96 the gradient is a ten-millionth; at 14 and 12 it is a tenth, and the 1/8 that the scaling itself puts
# before it costs little against that. So it is not only in this example: queries and keys drawn at random, one query
# over eight keys, at every width.

# %%
from shown import picture

from regard.pictures.gradients import gradients


def largest(width, scale):
    """max wᵢ (1 − wᵢ) of 500 queries, each over 8 keys."""
    chance = torch.Generator().manual_seed(width)
    q, k = (torch.randn(500, 1, number, width, generator=chance, dtype=torch.float64) for number in (1, 8))
    weights = attention_weights(q, k, scale=scale)
    return (weights * (1 - weights)).amax(-1).flatten().tolist()


widths = [4, 16, 64, 256, 1024]
drawn = {name: [largest(width, scale) for width in widths] for name, scale in (("q·k / √dₖ", None), ("q·k", 1.0))}
picture(gradients(widths, drawn), "gradients.svg")

# %% [markdown]
# With the scaling, what the softmax lets through does not depend on the width; without it, the wider the model, the
# less it learns (the line is the median, the band the middle half of the draws).
