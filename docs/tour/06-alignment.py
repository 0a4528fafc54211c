# %% [markdown]
# # Alignment
#
# Attention was introduced for alignment (Bahdanau et al. 2015): before it predicts a word, a translator looks up what
# to translate next. The state s of the decoder is the query, the words h of the source are keys and values:
#
# > αᵢⱼ = softmaxⱼ(score(sᵢ, hⱼ)), cᵢ = Σⱼ αᵢⱼ hⱼ
#
# The rows of α, one per output word, are the alignment matrix: target words are rows, source words are columns.

# %%
from helpers import figure, translator

from regard.run.load import load

folder = translator()
run = load(folder, device="cpu")
run.show("The goat finds the cake under the sofa because it is baked.")

# %% [markdown]
# Most of it follows the diagonal, word by word; it jumps where German puts the verb last.
#
# ## Comparison with the gold alignment
#
# In the embedded world the gold alignment is known; it is outlined. The weights are those of the head that was closest
# to it on validation sentences, while the model reads a test sentence and its translation.

# %%
from regard.show.figures.matrix import attention_matrix
from regard.tasks.shared.gold import align_gold, best_alignment_head
from regard.worlds import bilingual


def crosses(links):
    return any(s < r and t > u for s, t in links for r, u in links)


layer, head = best_alignment_head(run)
tests = bilingual.generate(50, seed=1, level=1, split="test", pronoun_fraction=0.5)
pair = next(pair for pair in tests if crosses(pair.alignment))
found = next(align_gold(run, [pair]))
weights, name = found.view(layer, head)
figure(attention_matrix(weights, found.source, found.target, gold=pair.alignment, title=name), "gold.svg")

# %% [markdown]
# The model was never trained on alignments. The alignment error rate measures how far its links are from the gold
# links over all test sentences, 0 at best (with its 95% interval, and the BLEU of its translations):

# %%
import json

scores = json.loads((folder / "scores.json").read_text())["test"]
for name in ("alignment_error", "bleu"):
    score, low, high = (scores[name][part] for part in ("score", "low", "high"))
    print(f"{name.replace('_', ' '):15} {score:7.3f}   [{low:.3f}, {high:.3f}]")

# %% [markdown]
# ## Exercises
#
# 1. Link every target word to the source word with its largest weight, in the head of this page. How many of these
#    links are gold, over the test sentences?

# %%
right = total = 0
for pair, found in zip(tests, align_gold(run, tests)):
    gold = set(pair.alignment)
    links = {(int(row.argmax()), target) for target, row in enumerate(found.view(layer, head)[0])}
    right, total = right + len(links & gold), total + len(links)
assert right > total / 2
print(f"1. {right / total:.0%} of {total} links")
