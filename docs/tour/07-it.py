# %% [markdown]
# # What "it" stands for
#
# German has three words for "it", by the gender of what is meant: der Fuchs, *er*; die Jacke, *sie*; das Schloss, *es*.
# To choose one, a translator has to know the antecedent, and in these three sentences only the last word tells it.

# %%
from shown import picture, regard, translator

folder = translator()
SENTENCES = [f"The fox carried the jacket into the castle because it was {how}." for how in ("hungry", "knitted", "dilapidated")]
regard("translate translator " + " ".join(f'"{sentence}"' for sentence in SENTENCES))

# %% [markdown]
# Where does it find that out? Of the heads with which the decoder looks at the English sentence, take the one that,
# over validation sentences, has most of its weight on the antecedent while the pronoun is said.

# %%
from regard.run.heads import explain_heads
from regard.run.opened import load

run = load(folder, device="cpu")
heads = explain_heads(run, number=60)
best = max((head for head in heads.heads if "cross" in head.place), key=lambda head: head.excess("antecedent"))
share, lot = best.shares["antecedent"]
print(f"{best.place}, head {best.number + 1}: {share:.0%} of its weight is on the antecedent; by lot it would be {lot:.0%}.")
print(f"Without this head, the right pronoun loses {heads.pronouns[best.place, best.number]:.2f} nats.")

# %%
import numpy as np

from regard.pictures.alignment import alignment

layer = int(best.place.split(".")[2])
rows, names = [], []
for found in run.align(SENTENCES):
    at = next(place for place, word in enumerate(found.target) if word in ("er", "sie", "es"))
    rows.append(found.weights[layer, best.number, at])
    names.append(f"{found.target[at]} ({found.source[-1]})")
source = [*found.source[:-1], "…"]
picture(alignment(np.stack(rows), source, names), "it.svg")

# %% [markdown]
# The three sentences are the same up to their last word, and yet *er* looks at the fox, *sie* at the jacket, *es* at
# the castle.
