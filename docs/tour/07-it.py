# %% [markdown]
# # The antecedent of "it"
#
# German has three words for "it", by the gender of the antecedent: der Fuchs, *er*; die Jacke, *sie*; das Schloss,
# *es*. To choose one, a translator has to know the antecedent, and in these sentences only the last word reveals it.

# %%
from helpers import figure, translator

from regard.run.load import load

folder = translator()
run = load(folder, device="cpu")
for last in ("hungry", "knitted", "dilapidated"):
    print(run.translate(f"The fox saw the jacket in the castle because it was {last}.").text)

# %% [markdown]
# What does the decoder attend to when it predicts the pronoun? Its second layer, head by head:

# %%
sentence = "The fox sees the loaf on the chest, but it is already baked."
words = run.translate(sentence).text.split()
pronoun = next(word for word in words if word in ("er", "sie", "es"))
run.show(sentence, view="token", token=pronoun, kind="cross", layer=2)

# %% [markdown]
# There are two solutions: to attend to the noun; or to attend to "it", from where a head of the encoder has attended
# to the noun before. Which of them a model learns depends on chance. Of all heads of both kinds, take the one that
# attends most to the antecedent over validation sentences:

# %%
from regard.explain.head_report import explain_heads

heads = explain_heads(run, number=120)
looking = [head for head in heads.heads if head.module.startswith("encoder") or "cross" in head.module]
best = max(looking, key=lambda head: head.weights["antecedent"][0] - head.weights["antecedent"][1])
weight, chance = best.weights["antecedent"]
print(heads.names()[best.module, best.head])
print(f"{weight:.0%} of its weight is on the antecedent; random baseline {chance:.0%}")
print(f"without it, the log-probability of the right pronoun falls by {heads.pronoun_importance[best.module, best.head]:.2f}")

# %% [markdown]
# This head on test sentences in which "it" could refer to any of three nouns. The rows are the predicted pronouns,
# with the nouns in their order; the antecedent is outlined.

# %%
import numpy as np

from regard.show.figures.matrix import attention_matrix
from regard.tasks.shared.gold import align_gold
from regard.worlds import bilingual

tests = bilingual.generate(200, seed=1, level=1, split="test", pronoun_fraction=0.5)
tests = [pair for pair in tests if any(len(it.candidates) == 3 for it in pair.pronouns)]
kind = "cross" if "cross" in best.module else "encoder"
layer, seen, names, meant = int(best.module.split(".")[2]), [], [], []
for pair, found in zip(tests, align_gold(run, tests, kind)):
    it, words = pair.pronouns[0], [word.strip(",.") for word in found.source]
    asking = it.target if kind == "cross" else it.source
    weights = found.weights[layer, best.head, asking]
    nouns = [weights[place] for place in it.candidates]
    seen.append([*nouns, weights[it.source], 1 - sum(nouns) - weights[it.source]])
    names.append(f"{it.form}: " + ", ".join(words[place] for place in it.candidates))
    meant.append(it.candidates.index(it.antecedent_source))
seen = np.clip(seen, 0, 1)
columns = ["first noun", "second noun", "third noun", "it", "all others"]
gold = [(noun, row) for row, noun in enumerate(meant[:12])]
figure(attention_matrix(seen[:12], columns, names[:12], gold=gold, truth="the antecedent"), "it.svg")

# %% [markdown]
# Of the three nouns it attends mostly to the antecedent, or to none. Over all such sentences, and the resulting
# pronoun accuracy:

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
    ", ".join(f"the {name} {weight:.0%}" for name, share in guesses.items()),
)

# %% [markdown]
# ## Exercises
#
# 1. How often is the pronoun right if one always says the most frequent of *er*, *sie*, *es*?

# %%
forms = [it.form for pair in tests for it in pair.pronouns]
most = max(set(forms), key=forms.count)
rate = forms.count(most) / len(forms)
assert 1 / 3 <= rate < 1
print(f"1. {rate:.0%}, with {most!r}: the accuracy above has to be compared with this")
