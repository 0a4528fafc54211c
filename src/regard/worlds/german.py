"""German inflection: articles, adjective endings, noun cases and the forms of the verb.

A case is nominative, accusative or dative; a genus is m, f, n or p (plural, where gender no longer shows).
"""

from typing import NamedTuple

CASES = ("nominative", "accusative", "dative")
GENERA = "mfnp"

# Rows are the cases above, columns m f n p.
STRONG = {"nominative": "er e es e", "accusative": "en e es e", "dative": "em er em en"}
MIXED = {"nominative": "er e es en", "accusative": "en e es en", "dative": "en en en en"}
WEAK = {"nominative": "e e e en", "accusative": "en e e en", "dative": "en en en en"}
ARTICLE = {"nominative": "der die das die", "accusative": "den die das die", "dative": "dem der dem den"}
EIN = {"nominative": "- e - e", "accusative": "en e - e", "dative": "em er em en"}
PRONOUN = {"nominative": "er sie es", "accusative": "ihn sie es"}

InflectionTable = dict[tuple[str, str], str]  # (case, genus) -> ending or word


def inflection_table(rows: dict[str, str]) -> InflectionTable:
    return {(case, genus): "" if cell == "-" else cell for case, row in rows.items() for genus, cell in zip(GENERA, row.split())}


def decline_determiner(stem: str) -> InflectionTable:
    """The forms of a determiner: der has its own table, ein-words drop three endings, the rest end as strong adjectives do."""
    if stem == "der":
        return inflection_table(ARTICLE)
    rows = EIN if stem in {"ein", "mein", "unser", "sein", "ihr"} else STRONG
    return {place: stem + ending for place, ending in inflection_table(rows).items()}


# What an adjective's ending shows is what the determiner before it has not shown yet.
ADJECTIVE_ENDINGS = {"weak": inflection_table(WEAK), "mixed": inflection_table(MIXED), "strong": inflection_table(STRONG)}
IT_FORMS = inflection_table(PRONOUN)
RELATIVE_PRONOUNS = inflection_table({**ARTICLE, "dative": "dem der dem denen"})
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins"}


def decline_noun(singular: str, plural: str, genus: str, weak: bool) -> InflectionTable:
    """All forms of a noun but the genitive, which this grammar does without."""
    forms = {}
    for case in CASES:
        forms[case, genus] = plural if weak and case != "nominative" else singular
        forms[case, "p"] = plural + "n" if case == "dative" and plural[-1] not in "ns" else plural
    return forms


class Verb(NamedTuple):
    """English base, third person, past and participle (and the particle of a phrasal verb); German forms likewise."""

    base: str
    third: str
    past: str
    participle: str
    particle: tuple[str, ...]
    infinitive: str
    prefix: str  # of a separable verb, else ""
    finite: dict[tuple[str, bool], str]  # (present | past, plural?) -> form without its prefix
    perfect: str  # hat | ist
    partizip: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    pinch: tuple[str, ...]  # classes that would fit at a pinch
    governs: str  # the case of its object
    place: str  # at | into | put | ""


def plural_past(form: str) -> str:
    return form + "n" if form.endswith("e") else form + "en"


# Auxiliaries: English singular and plural, German singular and plural.
AUXILIARIES = {
    "perfect hat": ("has", "have", "hat", "haben"),
    "perfect ist": ("has", "have", "ist", "sind"),
    "pluperfect hat": ("had", "had", "hatte", "hatten"),
    "pluperfect ist": ("had", "had", "war", "waren"),
    "future": ("will", "will", "wird", "werden"),
    "can": ("can", "can", "kann", "können"),
    "must": ("must", "must", "muss", "müssen"),
    "want": ("wants", "want", "will", "wollen"),
    "wanted": ("wanted", "wanted", "wollte", "wollten"),
    "be present": ("is", "are", "ist", "sind"),
    "be past": ("was", "were", "war", "waren"),
}
