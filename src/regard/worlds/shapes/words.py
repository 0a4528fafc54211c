"""The vocabulary of the captions: the wordings of each property and relation, frequent ones repeated."""

from regard.worlds.shapes.scene import COLOURS, KINDS
from regard.worlds.shapes.statement import NUMBERS

SYNONYMS = {
    "small": ("small", "small", "little"),
    "large": ("large", "large", "big"),
    "plain": ("plain",),
    "striped": ("striped",),
    "dotted": ("dotted", "spotted"),
    "above": ("above", "above", "over"),
    "below": ("below", "below", "under"),
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    **{colour: (colour,) for colour in COLOURS},
}
MEANINGS = {wording: meaning for meaning, wordings in SYNONYMS.items() for wording in wordings}
SINGULARS = {kind: kind for kind in KINDS} | {"shape": None}
PLURALS = {(kind + "es" if kind.endswith("ss") else kind + "s"): kind for kind in KINDS} | {"shapes": None}
NOUN = {(True, kind): noun for noun, kind in SINGULARS.items()} | {(False, kind): noun for noun, kind in PLURALS.items()}
OPENINGS = ("", "", "there", "there", "this picture shows", "a picture of", "we see")  # there is, there are
VOWELS = "aeiou"
VOCABULARY = frozenset(
    word
    for wordings in (*SYNONYMS.values(), SINGULARS, PLURALS, OPENINGS, NUMBERS, ["a an the and is are"])
    for wording in wordings
    for word in wording.split()
)


def indefinite_article(following: str) -> str:
    """Return a or an, by spelling: all words of the captions are pronounced as they are spelt."""
    return "an" if following[0] in VOWELS else "a"


def form_of_be(singular: bool) -> str:
    """Return is or are."""
    return "is" if singular else "are"
