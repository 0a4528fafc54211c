# %% [markdown]
# # Several heads
#
# One softmax makes one mean. A word needs several at once: the word before it, the noun it belongs to, what it
# translates. So there are several heads, each with projections of its own (Vaswani et al. 2017, sec. 3.2.2):
#
# > headₕ = Attention(x Wₕᵠ, x Wₕᴷ, x Wₕⱽ)
# >
# > MultiHead(x) = [head₁; …; head_H] Wᴼ
#
# Each is narrower than the model by as much as there are more of them, so several cost what one does.

# %%
from regard.attention.multihead import MultiHead

for heads in (1, 4, 8):
    layer = MultiHead(width=128, heads=heads)
    print(f"{heads} of width {128 // heads:3}: {sum(p.numel() for p in layer.parameters()):,} parameters")

# %% [markdown]
# What they look at is learned. This is a small Transformer that learns to translate sentences of an embedded world
# (`regard demo`, a little shorter), reading a sentence it has not seen: the four heads of its encoder's second layer, a
# colour each.

# %%
from shown import regard, translator

folder = translator()
regard('show translator "The fox sees the loaf on the chest, but it is already baked." --view heads --kind encoder --layer 2 '
       "--out heads.svg")

# %% [markdown]
# And the four heads of the decoder's second layer, side by side: what each German word looked at in the English
# sentence.

# %%
regard('show translator "The fox sees the loaf on the chest, but it is already baked." --heads --layer 2 --out cross-heads.svg')

# %% [markdown]
# Nobody told them what to do. Over a set of sentences one can measure it: where a head's weight goes, beside what it
# would be by lot (`regard explain translator --heads` prints the whole table, with what is lost without each head).

# %%
from regard.run.heads import explain_heads
from regard.run.opened import load

found = explain_heads(load(folder, device="cpu"), number=60)
print("\n".join(found.words()))

# %% [markdown]
# Heads of the decoder have found the word that they translate, and one of them, without being asked, what "it" stands
# for.
