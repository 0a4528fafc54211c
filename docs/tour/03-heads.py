# %% [markdown]
# # Several heads
#
# One softmax makes one mean. A word needs several at once: of the word before it, of the noun it belongs to, of what
# it translates. So there are several heads, each with projections of its own (Vaswani et al. 2017, sec. 3.2.2):
#
# > headₕ = Attention(x Qₕ, x Kₕ, x Vₕ)
# >
# > MultiHead(x) = [head₁; head₂; …] O
#
# The more there are, the narrower each is, so several cost what one does.

# %%
from regard.attention.multihead import MultiHeadAttention

for heads in (1, 4, 8):
    layer = MultiHeadAttention(width=128, heads=heads)
    parameters = sum(part.numel() for part in layer.parameters())
    print(f"{heads} of width {128 // heads:3}: {parameters:,} parameters")

# %% [markdown]
# What they look at is learned. Here a small Transformer has learned to translate sentences of an embedded world
# (`regard demo`) and reads one that it has not seen: the heads of a layer of the encoder, a colour each.

# %%
from shown import regard, translator

folder = translator()
regard(
    'show translator "The fox sees the loaf on the chest, but it is already baked." --view heads --kind encoder --out heads.svg'
)

# %% [markdown]
# And the four heads of the decoder's second layer, side by side: what each German word looked at in the English
# sentence.

# %%
regard('show translator "The fox sees the loaf on the chest, but it is already baked." --heads --layer 2 --out cross-heads.svg')

# %% [markdown]
# Nobody told them what to do. Over a set of sentences one can measure it: where a head's weight goes, and where it
# would go by lot. (`regard explain translator --heads` prints the whole table, with what is lost without each head.)

# %%
from regard.explain.head_report import explain_heads
from regard.run.load import load

found = explain_heads(load(folder, device="cpu"), number=60)
for head in found.heads:
    if head.does != "mixed":
        share, lot = head.shares[head.does]
        print(f"{head.place} {head.number + 1}: {head.does} {share:.0%} (by lot {lot:.0%})")

# %% [markdown]
# Heads of the decoder (`cross_attention`) have found the word that they translate, heads of the encoder other words
# next to theirs; those that are not named spread their weight over several relations.
