# %% [markdown]
# # Layer norm against batch norm
#
# Both subtract a mean and divide by a deviation,
#
# > y = γ (x − μ) / σ + β
#
# and differ in what these are computed over. Layer norm (Ba et al. 2016) computes μ and σ over the features of one
# word; batch norm (Ioffe & Szegedy 2015) computes them for one feature over all words of all sentences of a batch.

# %%
import torch

from regard.layers.norm import build_norm

generator = torch.Generator().manual_seed(3)
x = torch.randn(2, 4, 8, generator=generator)  # two sentences, four words, eight features
x[:, :, 1] += 3  # a feature that is large everywhere
x[0, 1] *= 2.5  # a word that is large in every feature

layer, batch = build_norm("layer", 8), build_norm("batch", 8)
after = {"layer norm": layer(x).detach(), "batch norm": batch(x).detach()}
for name, y in after.items():
    print(
        f"{name}: the mean of a word is within {y.mean(-1).abs().max():.2f} of 0,",
        f"the mean of a feature within {y.mean((0, 1)).abs().max():.2f}",
    )

# %%
from helpers import figure

from regard.show.figures.teaching import norm_figure

panels = {name: y.flatten(0, 1).numpy() for name, y in {"before": x, **after}.items()}
words = ["the", "old", "goat", "sleeps", "she", "saw", "a", "fox"]
figure(norm_figure(panels, words, breaks=[4], outlined={"layer norm": "row", "batch norm": "column"}), "norms.svg")

# %% [markdown]
# The outline marks what one mean is computed over. Layer norm normalises the large word and keeps the large feature;
# batch norm removes the large feature and keeps the large word.
#
# ## Why Transformers use layer norm
#
# Replace the second sentence, and compare the output for the first.

# %%
other = x.clone()
other[1] = 3 * torch.randn(4, 8, generator=generator)
for name, norm in (("layer norm", layer), ("batch norm", batch)):
    change = (norm(other)[0] - norm(x)[0]).abs().max().item()
    print(f"{name}: the first sentence changes by at most {change:.2f}")

# %% [markdown]
# With layer norm the output for a sentence is the same in any batch, or alone, and padding has no effect; with batch
# norm it depends on the rest of the batch. (`model.norm = "batch"` trains a Transformer with batch norm.)

# %% [markdown]
# ## Exercises
#
# 1. Multiply one word by 10. What does layer norm return for it? And RMS norm?

# %%
word = torch.randn(1, 1, 8, generator=generator)
for name in ("layer", "rms"):
    norm = build_norm(name, 8)
    assert torch.allclose(norm(10 * word), norm(word), atol=1e-3)
print("1. the same as before: both divide by a deviation that grows with the word")
