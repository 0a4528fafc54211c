"""Inflection of the bilingual world's words: English plurals and tenses; German articles, adjective endings, noun cases and
verb forms.

A German case is nominative, accusative or dative; a genus is m, f, n or p (plural, where the gender no longer shows).
"""

from typing import NamedTuple

VOWELS = "aeiou"
CASES = ("nominative", "accusative", "dative")
GENERA = "mfnp"

# Rows are cases, columns are m f n p; "-" is no ending.
STRONG = {"nominative": "er e es e", "accusative": "en e es e", "dative": "em er em en"}
MIXED = {"nominative": "er e es en", "accusative": "en e es en", "dative": "en en en en"}
WEAK = {"nominative": "e e e en", "accusative": "en e e en", "dative": "en en en en"}
ARTICLE = {"nominative": "der die das die", "accusative": "den die das die", "dative": "dem der dem den"}
EIN = {"nominative": "- e - e", "accusative": "en e - e", "dative": "em er em en"}
PRONOUN = {"nominative": "er sie es", "accusative": "ihn sie es"}

InflectionTable = dict[tuple[str, str], str]  # (case, genus) -> ending or word


def inflection_table(rows: dict[str, str]) -> InflectionTable:
    """Return the cells of a table as (case, genus) -> ending."""
    return {(case, genus): "" if cell == "-" else cell for case, row in rows.items() for genus, cell in zip(GENERA, row.split())}


# An adjective ending shows what the determiner before it has not shown yet.
ADJECTIVE_ENDINGS = {"weak": inflection_table(WEAK), "mixed": inflection_table(MIXED), "strong": inflection_table(STRONG)}
IT_FORMS = inflection_table(PRONOUN)
RELATIVE_PRONOUNS = inflection_table({**ARTICLE, "dative": "dem der dem denen"})
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins"}

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


class Verb(NamedTuple):
    """The English and German forms of a verb, and the semantic classes of its subject and object."""

    base: str
    third: str
    past: str
    participle: str
    particle: tuple[str, ...]  # of a phrasal verb
    infinitive: str
    prefix: str  # of a separable verb, else ""
    finite: dict[tuple[str, bool], str]  # (present | past, plural?) -> form without its prefix
    auxiliary: str  # hat | ist
    german_participle: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    marginal: tuple[str, ...]  # classes that would fit only marginally
    object_case: str
    complement: str  # at | into | put | for | ""


def pluralize(noun: str) -> str:
    """Return the regular English plural of a noun."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


def third_person(verb: str) -> str:
    """Return the English third person, spelt like a plural except for verbs in -o (goes, does)."""
    return verb + "es" if verb.endswith("o") else pluralize(verb)


def past_tense(verb: str) -> str:
    """Return the regular English past; verbs that double their consonant have their forms in the table."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return verb + "ed"


def indefinite_article(following: str) -> str:
    """Return a or an, by sound: the u of "uniform" is a consonant."""
    return "an" if following[0] in VOWELS and not following.startswith(("uni", "use", "eu", "one")) else "a"


def decline_determiner(stem: str) -> InflectionTable:
    """Return the forms of a determiner: der has its own table, ein-words drop three endings, the others take strong endings."""
    if stem == "der":
        return inflection_table(ARTICLE)
    rows = EIN if stem in {"ein", "mein", "unser", "sein", "ihr"} else STRONG
    return {cell: stem + ending for cell, ending in inflection_table(rows).items()}


def decline_noun(singular: str, plural: str, genus: str, weak: bool) -> InflectionTable:
    """Return all forms of a German noun except the genitive, which this grammar does not use."""
    forms = {}
    for case in CASES:
        forms[case, genus] = plural if weak and case != "nominative" else singular
        forms[case, "p"] = plural + "n" if case == "dative" and plural[-1] not in "ns" else plural
    return forms


def plural_past(form: str) -> str:
    """Return the German plural past of a singular past form."""
    return form + "n" if form.endswith("e") else form + "en"
