# %% [markdown]
# # Where a word stands
#
# Attention sees a set: shuffle the words, and each gets the same mean as before. So their positions are added to them,
# as waves of many lengths (Vaswani et al. 2017, sec. 3.5):
#
# > PE(p, 2i) = sin(p / 10000^(2i/d))
# >
# > PE(p, 2i + 1) = cos(p / 10000^(2i/d))

# %%
import torch

from regard.attention.plain import self_attention

chance = torch.Generator().manual_seed(1)
words, order = torch.randn(1, 5, 8, generator=chance), torch.tensor([3, 0, 4, 1, 2])
print("the same in any order:", torch.allclose(self_attention(words[:, order]), self_attention(words)[:, order], atol=1e-6))

# %% [markdown]
# The first 50 positions of 128 components:

# %%
from shown import regard

regard("show --positions --out positions.svg")

# %% [markdown]
# On the left, low components turn quickly, like the seconds of a clock, and high ones hardly at all. On the right, the
# dot product of two positions is largest where they are the same, falls off to both sides, and depends on their
# distance alone, since sin a sin b + cos a cos b = cos(a − b):

# %%
from regard.attention.positions import sinusoids

table = sinusoids(torch.arange(50), 128)
for distance in (0, 1, 2, 5, 10):
    print(f"{distance:2} apart:", "  ".join(f"{float(table[p] @ table[p + distance]):6.2f}" for p in (0, 7, 21, 39)))

# %% [markdown]
# Every row has one number: how far apart two words are can be read off the scores, wherever in the sentence they stand.
