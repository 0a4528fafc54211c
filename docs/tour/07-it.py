# %% [markdown]
# # What "it" stands for
#
# German has three words for "it", by the gender of what is meant: der Fuchs, *er*; die Jacke, *sie*; das Schloss,
# *es*. To choose one, a translator has to know the antecedent, and in these sentences only the last word tells it.

# %%
from shown import picture, regard, translator

folder = translator()
regard(
    "translate translator "
    '"The fox saw the jacket in the castle because it was hungry." '
    '"The fox saw the jacket in the castle because it was knitted." '
    '"The fox saw the jacket in the castle because it was dilapidated."'
)

# %% [markdown]
# What does the decoder look at when it says the pronoun? Its second layer, head by head:

# %%
from regard.run.load import load

run = load(folder, device="cpu")
sentence = "The fox sees the loaf on the chest, but it is already baked."
words = run._best([sentence])[0].text.split()
pronoun = next(word for word in words if word in ("er", "sie", "es"))
regard(f'show translator "{sentence}" --view token --token {pronoun} --kind cross --layer 2 --out said.svg')

# %% [markdown]
# There are two ways: to look at the noun; or to look at "it", from where a head of the encoder has looked at the noun
# before. Which of them a model finds is up to chance. Of all heads of both, take the one that, over validation
# sentences, looks at the antecedent most:

# %%
from regard.explain.head_report import explain_heads

heads = explain_heads(run, number=120)
looking = [head for head in heads.heads if head.place.startswith("encoder") or "cross" in head.place]
best = max(looking, key=lambda head: head.excess("antecedent"))
share, lot = best.shares["antecedent"]
print(f"{best.place}, head {best.number + 1}")
print(f"{share:.0%} of its weight is on the antecedent; by lot it would be {lot:.0%}")
print(f"without it, the log-probability of the right pronoun falls by {heads.pronouns[best.place, best.number]:.2f}")

# %% [markdown]
# This is that head on test sentences in which "it" might be any of three nouns. The rows are the pronouns said, with
# the nouns in their order; outlined is the one that is meant.

# %%
import numpy as np

from regard.show.figures.matrix import attention_matrix
from regard.tasks.shared.gold import align_gold
from regard.worlds import bilingual

tests = bilingual.generate(200, seed=1, level=1, split="test", pronoun_fraction=0.5)
tests = [pair for pair in tests if any(len(it.candidates) == 3 for it in pair.pronouns)]
kind = "cross" if "cross" in best.place else "encoder"
layer, seen, names, meant = int(best.place.split(".")[2]), [], [], []
for pair, found in zip(tests, align_gold(run, tests, kind)):
    it, words = pair.pronouns[0], [word.strip(",.") for word in found.source]
    asking = it.target if kind == "cross" else it.source
    weights = found.weights[layer, best.number, asking]
    nouns = [weights[place] for place in it.candidates]
    seen.append([*nouns, weights[it.source], 1 - sum(nouns) - weights[it.source]])
    names.append(f"{it.form}: " + ", ".join(words[place] for place in it.candidates))
    meant.append(it.candidates.index(it.antecedent_source))
seen = np.clip(seen, 0, 1)
columns = ["first noun", "second noun", "third noun", "it", "all others"]
gold = [(noun, row) for row, noun in enumerate(meant[:12])]
picture(attention_matrix(seen[:12], columns, names[:12], gold=gold, truth="the antecedent"), "it.svg")

# %% [markdown]
# Of the three nouns it looks mostly at the one that is meant, or at none. Over all such sentences, and what comes of it:

# %%
import json

right = seen[np.arange(len(seen)), meant].mean()
print(
    f"weight on the antecedent {right:.2f}, on the two other nouns",
    f'{seen[:, :3].sum(1).mean() - right:.2f}, on "it" {seen[:, 3].mean():.2f}',
)
said = json.loads((folder / "scores.json").read_text())["test"]["pronouns"]
guesses = bilingual.pronoun_baselines(tests)
print(
    f"pronouns that are right: {said['score']:.0f}%, by always taking",
    ", ".join(f"the {name} {share:.0%}" for name, share in guesses.items()),
)
