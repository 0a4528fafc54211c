# %% [markdown]
# # Positions
#
# Attention operates on a set: if the words are permuted, each gets the same mean as before.

# %%
import torch

from regard.attention.core import self_attention

words = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1))
order = torch.tensor([3, 0, 4, 1, 2])
before, after = self_attention(words)[:, order], self_attention(words[:, order])
print("the same in any order:", torch.allclose(before, after, atol=1e-6))

# %% [markdown]
# Therefore the position p of a word is added to it, as waves of many wavelengths (Vaswani et al. 2017, sec. 3.5):
#
# > PE(p, 2i) = sin(p / 10000^(2i/d))
# >
# > PE(p, 2i + 1) = cos(p / 10000^(2i/d))
#
# The figure shows 128 components and 50 positions.

# %%
from regard.show.attention import show_positions

show_positions()

# %% [markdown]
# On the left, the first components oscillate quickly, like the seconds of a clock, and the last hardly at all. On the
# right, the dot product of two positions is largest where they are equal and falls off to both sides. It depends only
# on their distance, since sin a sin b + cos a cos b = cos(a − b):

# %%
from regard.attention.positions import sinusoids

table = sinusoids(torch.arange(50), 128)
for distance in (0, 1, 2, 5, 10):
    products = [table[place] @ table[place + distance] for place in (0, 7, 21, 39)]
    print(f"{distance:2} apart:", *(f"{product:6.2f}" for product in products))

# %% [markdown]
# Each row has a single value: a score can express the distance of two words, independent of where they are in the
# sentence.

# %% [markdown]
# ## Exercises
#
# 1. Vaswani et al. chose this encoding because PE(p + k) is a linear function of PE(p). Find the matrix for k = 3.

# %%
shift = 3
rates = 10_000 ** (-torch.arange(0, 128, 2) / 128)
turn = torch.zeros(128, 128, dtype=table.dtype)
for i, rate in enumerate(rates):  # a rotation of each pair (sin, cos) by k times its rate
    c, s = torch.cos(shift * rate), torch.sin(shift * rate)
    turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[c, s], [-s, c]])
assert torch.allclose(table[shift:], table[:-shift] @ turn.T, atol=1e-5)
print("1. a rotation of each pair of components by k / 10000^(2i/d), the same for every p")
