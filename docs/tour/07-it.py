# %% [markdown]
# # What "it" stands for
#
# German has three words for "it", by the gender of what is meant: der Fuchs, *er*; die Jacke, *sie*; das Schloss,
# *es*. To choose one, a translator has to know the antecedent, and in these sentences only the last word tells it.

# %%
from shown import picture, regard, translator

folder = translator()
regard('translate translator "The fox carried the jacket into the castle because it was hungry." '
       '"The fox carried the jacket into the castle because it was knitted." '
       '"The fox carried the jacket into the castle because it was dilapidated."')

# %% [markdown]
# What does the decoder look at when it says the pronoun? Of the heads with which it looks at the English sentence,
# take the one that, over validation sentences, has most weight on the antecedent at that moment.

# %%
from regard.run.heads import explain_heads
from regard.run.opened import load

run = load(folder, device="cpu")
heads = explain_heads(run, number=60)
best = max((head for head in heads.heads if "cross" in head.place),
           key=lambda head: head.excess("antecedent"))
share, lot = best.shares["antecedent"]
lost = heads.pronouns[best.place, best.number]
print(f"{best.place}, head {best.number + 1}")
print(f"{share:.0%} of its weight is on the antecedent; by lot it would be {lot:.0%}")
print(f"without it, the log-probability of the right pronoun falls by {lost:.2f}")

# %% [markdown]
# This is that head on the first twelve test sentences in which "it" might be any of three nouns. The rows are the
# pronouns said, with the nouns in their order; outlined is the one that is meant.

# %%
import numpy as np

from regard.pictures.alignment import alignment
from regard.run.truth import align_gold
from regard.worlds import bilingual

tests = bilingual.generate(200, seed=1, level=1, split="test", share=0.5)
tests = [pair for pair in tests if pair.pronouns and len(pair.pronouns[0].candidates) == 3]
layer, seen, names, meant = int(best.place.split(".")[2]), [], [], []
for pair, found in zip(tests, align_gold(run, tests)):
    it, words = pair.pronouns[0], [word.strip(",.") for word in found.source]
    weights = found.weights[layer, best.number, it.target]
    nouns = [weights[place] for place in it.candidates]
    seen.append([*nouns, weights[it.source], 1 - sum(nouns) - weights[it.source]])
    names.append(f"{it.form}: " + ", ".join(words[place] for place in it.candidates))
    meant.append(it.candidates.index(it.antecedent_source))
columns = ["first noun", "second noun", "third noun", "it", "all others"]
seen = np.clip(seen, 0, 1)
picture(alignment(seen[:12], columns, names[:12], truth="the antecedent",
                  gold=[(noun, row) for row, noun in enumerate(meant[:12])]), "it.svg")

# %%
right = seen[np.arange(len(seen)), meant].mean()
wrong = seen[:, :3].sum(1).mean() - right
print(f"over all {len(seen)}: the antecedent {right:.2f}, the two other nouns together {wrong:.2f},",
      f'"it" itself {seen[:, 3].mean():.2f}')
