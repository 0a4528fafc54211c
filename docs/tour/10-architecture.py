# %% [markdown]
# # The architecture
#
# A Transformer is a stack of equal layers: self-attention and a feed-forward layer, in the decoder of a translator
# cross-attention between them, each with a residual connection and a norm (Vaswani et al. 2017, fig. 1). This diagram
# is drawn from the modules of the trained translator, with the shapes of its weights:

# %%
from helpers import translator

from regard.run.load import load
from regard.show.forward_pass.model_structure import show_architecture

run = load(translator(), device="cpu")
show_architecture(run)

# %% [markdown]
# The norm comes before each sub-layer here (pre-norm); in the paper it comes after the sum (post-norm).
#
# ## One sentence through it
#
# `run.show(text, view="flow")` is this diagram with the numbers of one sentence, stage by stage: in a notebook or a
# browser the arrow keys go through them. The *logit lens* (nostalgebraist 2020) asks each layer what it would predict,
# if it were the last:

# %%
sentence = "The goat finds the cake under the sofa because it is baked."
run.show(sentence, view="lens")

# %% [markdown]
# Before the first layer a token predicts itself, since the output layer shares its weights with the embeddings; the
# translation appears layer by layer.
#
# ## Complexity
#
# Why attention? Vaswani et al. (table 1) compare layers by their operations, by how many of these must wait for one
# another, and by the longest path between two positions; n is the length, d the width, k a kernel, r a window:

# %%
layers = {
    "self-attention": ("O(n² d)", "O(1)", "O(1)", lambda n, d: n * n * d),
    "recurrent": ("O(n d²)", "O(n)", "O(n)", lambda n, d: n * d * d),
    "convolution, k = 3": ("O(k n d²)", "O(1)", "O(logₖ n)", lambda n, d: 3 * n * d * d),
    "self-attention, r = 64": ("O(r n d)", "O(1)", "O(n / r)", lambda n, d: min(n, 64) * n * d),
}
lengths = (30, 512, 8192)
print(f"{'layer, d = 512':24}{'operations':12}{'sequential':12}{'path':12}" + "".join(f"{f'n = {n}':>12}" for n in lengths))
for name, (operations, sequential, path, count) in layers.items():
    print(f"{name:24}{operations:12}{sequential:12}{path:12}" + "".join(f"{count(n, 512) / 1e6:10,.1f} M" for n in lengths))

# %% [markdown]
# Self-attention is cheaper than a recurrent layer as long as the text is shorter than the width of the model; beyond
# that, its square of n is the price of a path of one step. The count of the program agrees:

# %%
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.core import attend_with_weights


def count_flops(n, d=512):
    """Return the floating-point operations of attention between n tokens of width d."""
    x = torch.zeros(1, 1, n, d)
    with FlopCounterMode(display=False) as counter:
        attend_with_weights(x, x, x)
    return counter.get_total_flops()


for n in (128, 256, 512):
    print(f"n = {n}: {count_flops(n) / 1e6:6.1f} million")

# %% [markdown]
# ## Exercises
#
# 1. At which length does self-attention cost as much as a recurrent layer of width 512?
# 2. By which factor does attention grow if the text becomes twice as long?

# %%
attention, recurrent = layers["self-attention"][3], layers["recurrent"][3]
crossing = next(n for n in range(1, 2000) if attention(n, 512) >= recurrent(n, 512))
assert crossing == 512
print(f"1. at n = d = {crossing}")
assert count_flops(256) == 4 * count_flops(128) > 0
print(f"2. by {count_flops(256) // count_flops(128)}")
