# %% [markdown]
# # Images as tokens
#
# A Transformer reads a sequence of vectors. The Vision Transformer (ViT, Dosovitskiy et al. 2021) makes one out of an
# image: it cuts the image into patches, reads them line by line, and projects the pixels of each to the width of the
# model (sec. 3.1, eq. 1):
#
# > z₀ = [x_class; x₁E; x₂E; …; x_N E] + E_pos
#
# Here is an image of 32 × 32 pixels and its 16 patches of 8 × 8:

# %%
import torch
from helpers import figure

from regard.show.figures.teaching import patch_figure
from regard.worlds import shapes

image = shapes.generate(1, seed=1, split="test", size=32, shapes=(2, 2))[0].pixels()
figure(patch_figure(image, 8), "patches.png")

# %% [markdown]
# Each patch has 8 · 8 · 3 = 192 numbers. The projection E is the same for all patches, so that it is a convolution
# whose stride is its width; this is how the model of this package computes it.

# %%
from regard.models.vit import PatchEmbedding

embed = PatchEmbedding(width=64, patch=(8, 8), grid=(4, 4))
pixels = torch.tensor(image).permute(2, 0, 1)[None] / 255  # (1, 3, 32, 32)
patches = pixels.unfold(2, 8, 8).unfold(3, 8, 8)  # (1, 3, 4, 4, 8, 8)
patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # (1, 16, 192)
by_hand = patches @ embed.weight.flatten(1).T + embed.bias
difference = (by_hand - embed(pixels)).abs().max().item()
print(f"{patches.shape[1]} tokens of {patches.shape[2]} numbers; projection and convolution differ by {difference:.0e}")

# %% [markdown]
# ## The price of small patches
#
# Every token attends to every other: half the patch size gives four times as many tokens and sixteen times as many
# pairs.

# %%
for size, patch in ((224, 32), (224, 16), (224, 8), (384, 16)):
    tokens = (size // patch) ** 2 + 1  # and the class token
    print(f"{size} × {size} pixels, patches of {patch:2}: {tokens:4} tokens, {tokens**2:9,} pairs in each head")

# %% [markdown]
# A map of what an image model attends to can mislead. Rudin (2019, fig. 2) shows maps of one image for "Siberian
# husky" and for "transverse flute" that are nearly the same; [Explanations](../explain.md) tests for that
# (`--against`).
#
# ## Exercises
#
# 1. An image of 224 × 224 pixels is cut into patches of 16 × 16 and read by a model of width 768. How many parameters
#    has the projection, bias included?
# 2. What changes in the tokens if the patches are read in another order?

# %%
large = PatchEmbedding(width=768, patch=(16, 16), grid=(14, 14))
assert sum(p.numel() for p in large.parameters()) == 16 * 16 * 3 * 768 + 768
print(f"1. 16 · 16 · 3 · 768 + 768 = {16 * 16 * 3 * 768 + 768:,}")
order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
assert torch.allclose(by_hand[:, order], patches[:, order] @ embed.weight.flatten(1).T + embed.bias, atol=1e-6)
print("2. only their order: where a patch was is known from its position embedding alone")
