# %% [markdown]
# # Several heads
#
# One softmax computes one mean. A word needs several at once: of the word before it, of the noun it belongs to, of the
# word that it translates. Therefore there are several heads, each with its own projections (Vaswani et al. 2017,
# sec. 3.2.2):
#
# > headₕ = Attention(x Qₕ, x Kₕ, x Vₕ)
# >
# > MultiHead(x) = [head₁; head₂; …] O
#
# The more heads there are, the narrower each is, so that several heads cost as much as one.

# %%
from regard.attention.multihead import MultiHeadAttention

for heads in (1, 4, 8):
    layer = MultiHeadAttention(width=128, heads=heads)
    parameters = sum(part.numel() for part in layer.parameters())
    print(f"{heads} of width {128 // heads:3}: {parameters:,} parameters")

# %% [markdown]
# What they attend to is learned. A small Transformer was trained to translate sentences of an embedded world
# (`regard demo`) and reads a sentence that was not in the training set: the heads of one layer of the encoder, one
# colour per head.

# %%
from helpers import translator

from regard.run.load import load

run = load(translator(), device="cpu")
sentence = "The fox sees the loaf on the chest, but it is already baked."
run.show(sentence, view="heads", kind="encoder")

# %% [markdown]
# The four heads of the decoder's second layer, side by side: what each German word attended to in the English
# sentence.

# %%
run.show(sentence, view="head-matrices", layer=2)

# %% [markdown]
# No head was trained for a particular role. Its role can be measured over a set of sentences: the relation that
# receives its weight, next to the random baseline. (`regard explain translator --heads` prints the whole table, with
# the loss without each head.)

# %%
from regard.explain.head_report import explain_heads

found = explain_heads(run, number=60)
names = found.names()
for head in found.heads:
    if head.role != "mixed":
        weight, chance = head.weights[head.role]
        print(f"{names[head.module, head.head]}: {head.role} {weight:.0%} (random baseline {chance:.0%})")

# %% [markdown]
# Heads of cross-attention have found the word that they translate, heads of the encoder neighbouring
# words; heads that are not listed spread their weight over several relations.

# %% [markdown]
# ## Exercises
#
# 1. How many parameters has multi-head attention of width D, biases included? Does the number of heads matter?

# %%
width = 128
counted = {heads: sum(p.numel() for p in MultiHeadAttention(width=width, heads=heads).parameters()) for heads in (1, 2, 16)}
assert set(counted.values()) == {4 * (width**2 + width)}
print(f"1. 4 (D² + D) = {4 * (width**2 + width):,} for D = {width}, with any number of heads")
