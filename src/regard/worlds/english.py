"""English inflection: the little that is left of it."""

VOWELS = "aeiou"


def pluralize(noun: str) -> str:
    """The regular plural of a noun."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


def third_person(verb: str) -> str:
    """The third person: spelt as a plural is, but for goes and does."""
    return verb + "es" if verb.endswith("o") else pluralize(verb)


def past_tense(verb: str) -> str:
    """The regular past of a verb; those that double their consonant stand in the tables with their forms."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return verb + "ed"


def indefinite_article(following: str) -> str:
    """a or an, by sound: the u of "uniform" is a consonant."""
    return "an" if following[0] in VOWELS and not following.startswith(("uni", "use", "eu", "one")) else "a"
