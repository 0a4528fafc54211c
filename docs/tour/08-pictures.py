# %% [markdown]
# # Looking at a picture
#
# Keys and values need not be words. Show, Attend and Tell (Xu et al. 2015) reads a picture as a map of 8 × 8 vectors a,
# and before each word of a caption looks at them, with the additive score:
#
# > αₜᵢ = softmaxᵢ(v · tanh(W hₜ₋₁ + U aᵢ)), zₜ = Σᵢ αₜᵢ aᵢ
#
# A small one, trained on pictures of one or two coloured shapes (`docs/tour/captioner.toml`), and pictures it has not
# seen:

# %%
from PIL import Image
from shown import FOLDER, captioner, regard

from regard.worlds import shapes

folder = captioner()
for number, scene in enumerate(shapes.generate(4, seed=1, split="test", size=32, shapes=(2, 2)), start=1):
    Image.fromarray(scene.pixels()).save(FOLDER / f"shapes-{number}.png")
    print(f"shapes-{number}.png:", scene.captions[0].text)

# %%
regard("caption captioner shapes-1.png shapes-2.png shapes-3.png shapes-4.png --greedy --out looks.png")

# %% [markdown]
# Bright is where it looked for the word above. At the name of a shape it looks at that shape, or at what it took for
# it: it is small, and not all that it says is true.
#
# ## Measured
#
# In the embedded world it is known which shape a phrase means, and which box that fills. This is how much of the
# attention falls into the right boxes while true captions are read, beside what looking everywhere alike would put
# there, and how many of its own captions are wholly true:

# %%
import json

scores = json.loads((folder / "scores.json").read_text())["test"]
for name in ("attention_inside", "inside_by_chance", "true"):
    print(f"{name.replace('_', ' '):17} {scores[name]['score']:3.0f} %   [{scores[name]['low']:.0f}, {scores[name]['high']:.0f}]")

# %% [markdown]
# Nobody told it where anything is: it had pictures and captions alone. `recipes/shapes-caption.toml` is the larger one.
