# %% [markdown]
# # Attention to images
#
# Keys and values need not be words. Show, Attend and Tell (Xu et al. 2015) encodes an image as a feature map a, here
# 8 × 8, and attends to it before each word of a caption, with the additive score:
#
# > αₜᵢ = softmaxᵢ(v · tanh(W hₜ₋₁ + U aᵢ)), zₜ = Σᵢ αₜᵢ aᵢ
#
# A small model, trained on images of one or two coloured shapes ([captioner.toml](captioner.toml)), describes images
# that were not in the training set:

# %%
from helpers import FOLDER, captioner, figure
from PIL import Image

from regard.run.load import load
from regard.worlds import shapes

folder = captioner()
run = load(folder, device="cpu")
tests = shapes.generate(5, seed=1, split="test", size=32, shapes=(2, 2))
for number, test in enumerate(tests, start=1):
    Image.fromarray(test.pixels()).save(FOLDER / f"shapes-{number}.png")
for number in (1, 2, 4):
    print(run.caption(FOLDER / f"shapes-{number}.png").text)
run.show(FOLDER / "shapes-4.png")

# %% [markdown]
# The figure shows the last of them: in colour where it attended for each word. The model is small, not always right, and
# its captions are short; to see its attention move from one shape to another, let it read the world's own captions of two
# images.

# %%
from regard.show.figures.image_figures import ImageAttention, image_attention_figure

chosen = [tests[3], tests[4]]
captions = [test.captions[0].text for test in chosen]
found = run.align([FOLDER / "shapes-4.png", FOLDER / "shapes-5.png"], captions)
figure(
    image_attention_figure([ImageAttention(test.pixels(), look.words, look.weights) for test, look in zip(chosen, found)]),
    "read.png",
)

# %% [markdown]
# The attention moves with the words from one shape to the other, though not cleanly: a model as small as this often
# attends to both.
#
# ## Measurements
#
# In the embedded world it is known which shape a phrase refers to, and its bounding box: how much of the attention
# falls into the right boxes while true captions are read, how much would with uniform attention, and how many of the
# model's own captions are entirely true (with 95% intervals).

# %%
import json

scores = json.loads((folder / "scores.json").read_text())["test"]
for name in ("attention_inside", "inside_by_chance", "true"):
    score, low, high = (scores[name][part] for part in ("score", "low", "high"))
    print(f"{name.replace('_', ' '):16} {score:3.0f} %   [{low:.0f}, {high:.0f}]")

# %% [markdown]
# The model was trained on images and captions alone, without boxes. `recipes/shapes-caption.toml` trains a larger one.

# %% [markdown]
# ## Exercises
#
# 1. The feature map is 8 × 8. What is the weight of each position under uniform attention, and do the weights of every
#    word above add up to one?

# %%
import numpy as np

found = run.align([FOLDER / "shapes-4.png", FOLDER / "shapes-5.png"], captions)
sums = np.concatenate([look.weights.reshape(*look.weights.shape[:-2], -1).sum(-1).flatten() for look in found])
assert np.allclose(sums, 1, atol=1e-3)
print(f"1. {1 / 64:.4f}; all {len(sums)} sums are one")
