"""The words of the captions: how each thing may be said, the commonest repeated."""

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
MEANINGS = {said: meaning for meaning, ways in SYNONYMS.items() for said in ways}
SINGULARS = {kind: kind for kind in KINDS} | {"shape": None}
PLURALS = {(kind + "es" if kind.endswith("ss") else kind + "s"): kind for kind in KINDS} | {"shapes": None}
NOUN = {(True, kind): noun for noun, kind in SINGULARS.items()} | {(False, kind): noun for noun, kind in PLURALS.items()}
OPENINGS = ("", "", "there", "there", "this picture shows", "a picture of", "we see")  # there is, there are
VOWELS = "aeiou"
VOCABULARY = frozenset(
    word
    for ways in (*SYNONYMS.values(), SINGULARS, PLURALS, OPENINGS, NUMBERS, ["a an the and is are"])
    for said in ways
    for word in said.split()
)


def indefinite_article(following: str) -> str:
    return "an" if following[0] in VOWELS else "a"


def form_of_be(singular: bool) -> str:
    return "is" if singular else "are"
