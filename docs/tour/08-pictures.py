# %% [markdown]
# # Looking at a picture
#
# Keys and values need not be words. Show, Attend and Tell (Xu et al. 2015) reads a picture as a map of vectors a, here
# 8 × 8, and before each word of a caption looks at them, with the additive score:
#
# > αₜᵢ = softmaxᵢ(v · tanh(W hₜ₋₁ + U aᵢ)), zₜ = Σᵢ αₜᵢ aᵢ
#
# A small one, trained on pictures of one or two coloured shapes ([captioner.toml](captioner.toml)), says what it sees
# on pictures that it has not seen:

# %%
from PIL import Image
from shown import FOLDER, captioner, picture, regard

from regard.worlds import shapes

folder = captioner()
tests = shapes.generate(5, seed=1, split="test", size=32, shapes=(2, 2))
for number, test in enumerate(tests, start=1):
    Image.fromarray(test.pixels()).save(FOLDER / f"shapes-{number}.png")
regard("caption captioner shapes-1.png shapes-2.png shapes-4.png --out looks.png")

# %% [markdown]
# Bright is where it looked for the word above. It is small and not always right, and says little; to see it look from
# one shape to another, let it read what the world itself says of two pictures.

# %%
from regard.run.load import load
from regard.show.figures.overlay import ImageAttention, image_attention_figure

run = load(folder, device="cpu")
chosen = [tests[3], tests[4]]
captions = [test.captions[0].text for test in chosen]
found = run.align([FOLDER / "shapes-4.png", FOLDER / "shapes-5.png"], captions)
picture(
    image_attention_figure([ImageAttention(test.pixels(), look.words, look.weights) for test, look in zip(chosen, found)]),
    "read.png",
)

# %% [markdown]
# With the words it goes from one shape to the other, though not cleanly: a model as small as this often keeps an eye on
# both.
#
# ## Measured
#
# In the embedded world it is known which shape a phrase means, and which box that fills: how much of the attention
# falls into the right boxes while true captions are read, how much would if it looked everywhere alike, and how many
# of its own captions are wholly true (with 95% intervals).

# %%
import json

scores = json.loads((folder / "scores.json").read_text())["test"]
for name in ("attention_inside", "inside_by_chance", "true"):
    score, low, high = (scores[name][part] for part in ("score", "low", "high"))
    print(f"{name.replace('_', ' '):16} {score:3.0f} %   [{low:.0f}, {high:.0f}]")

# %% [markdown]
# Nobody told it where anything is: it had pictures and captions alone. `recipes/shapes-caption.toml` is a larger one.
