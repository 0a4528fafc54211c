# %% [markdown]
# # Layer norm against batch norm
#
# Both subtract a mean and divide by a deviation,
#
# > y = γ (x − μ) / σ + β
#
# and differ in what these are taken over. Layer norm (Ba et al. 2016) takes μ and σ over the features of one word;
# batch norm (Ioffe & Szegedy 2015) takes them for one feature over all words of all sentences of a batch.

# %%
import torch

from regard.layers.norm import build_norm

chance = torch.Generator().manual_seed(3)
x = torch.randn(2, 4, 8, generator=chance)  # two sentences, four words, eight features
x[:, :, 1] += 3  # a feature that is large everywhere
x[0, 1] *= 2.5  # a word that is large throughout

layer, batch = build_norm("layer", 8), build_norm("batch", 8)
after = {"layer norm": layer(x).detach(), "batch norm": batch(x).detach()}
for name, y in after.items():
    print(
        f"{name}: the mean of a word is within {y.mean(-1).abs().max():.2f} of 0,",
        f"the mean of a feature within {y.mean((0, 1)).abs().max():.2f}",
    )

# %%
from shown import picture

from regard.show.figures.teaching import norm_figure

panels = {name: y.flatten(0, 1).numpy() for name, y in {"before": x, **after}.items()}
words = ["the", "old", "goat", "sleeps", "she", "saw", "a", "fox"]
picture(norm_figure(panels, words, breaks=[4], outlined={"layer norm": "row", "batch norm": "column"}), "norms.svg")

# %% [markdown]
# Outlined is what one mean is taken over. Layer norm calms the large word and leaves the large feature; batch norm
# takes the large feature away and leaves the large word.
#
# ## Why Transformers take the first
#
# Let the second sentence be another, and see what becomes of the first.

# %%
other = x.clone()
other[1] = 3 * torch.randn(4, 8, generator=chance)
for name, norm in (("layer norm", layer), ("batch norm", batch)):
    change = (norm(other)[0] - norm(x)[0]).abs().max().item()
    print(f"{name}: the first sentence changes by at most {change:.2f}")

# %% [markdown]
# With layer norm a sentence is the same in any company, or alone, and padding does not count; with batch norm it
# depends on what it happens to be trained beside. (`model.norm = "batch"` trains a Transformer so, to see it.)
