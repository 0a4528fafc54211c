"""The word tables of the bilingual world (data/*.tsv, described in data/README.md), read once and restricted to a difficulty
level."""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from regard.worlds.inflection import (
    CASES,
    InflectionTable,
    Verb,
    decline_determiner,
    decline_noun,
    past_tense,
    plural_past,
    pluralize,
    third_person,
)

GENDER = {"der": "m", "die": "f", "das": "n"}
COLOURED = ("building", "container", "device", "furniture", "garment", "instrument", "part", "vehicle")
GROUPS = {"coloured": COLOURED, "thing": (*COLOURED, "food", "plant", "room", "text", "tool")}
# The determiners that each level samples from, frequent ones repeated; "" is none, and the first is the plain one.
SINGULAR_DETERMINERS = {
    1: "the the the a a my",
    2: "the the the the a a this my our",
    3: "the the the the a a this every my our his her",
}
PLURAL_DETERMINERS = {1: "the -", 2: "the the - these many", 3: "the the - - these my our many some all"}


Pair = tuple[str, str]
"""English and German, one or several words each, that are aligned with each other."""


class Noun(NamedTuple):
    singular: str
    plural: str  # "" for a mass noun
    forms: InflectionTable  # German, by case and genus
    gender: str
    kind: str  # its semantic class: animal, food …


class Adjective(NamedTuple):
    english: str
    german: str
    stem: str  # what takes endings: teuer, but teur-
    kinds: tuple[str, ...]
    marginal: tuple[str, ...] = ()


class Determiner(NamedTuple):
    english: str  # "" for none
    forms: InflectionTable
    pattern: str  # of the adjective after it: weak, mixed, strong


class Preposition(NamedTuple):
    rest: str
    motion: str
    german: str
    kinds: tuple[str, ...]


class Lexicon(NamedTuple):
    nouns: dict[str, tuple[Noun, ...]]  # by class
    gendered: dict[tuple[str, str], tuple[Noun, ...]]  # by class and gender
    adjectives: dict[str, tuple[Adjective, ...]]  # attributive, by class
    predicates: tuple[Adjective, ...]  # predicative
    verbs: dict[str, tuple[Verb, ...]]  # by table
    acting: dict[tuple[str, str], tuple[Verb, ...]]  # by table and class of the subject
    singular: tuple[Determiner, ...]
    plural: tuple[Determiner, ...]
    numbers: tuple[Pair, ...]
    times: dict[str, tuple[tuple[Pair, ...], ...]]  # by tense; the parts of each
    manners: tuple[Pair, ...]
    prepositions: tuple[Preposition, ...]
    subordinators: dict[str, tuple[Pair, ...]]  # by tense


@cache
def read_table(name: str, level: int = 3) -> tuple[dict[str, str], ...]:
    """Return the rows of data/NAME.tsv up to a level, each as column -> cell; "-" is an empty cell."""
    text = files("regard.worlds").joinpath("data", f"{name}.tsv").read_text(encoding="utf-8")
    header, *lines = (line.split("\t") for line in text.splitlines())
    rows = (dict(zip(header, ("" if cell == "-" else cell for cell in line), strict=True)) for line in lines)
    return tuple(row for row in rows if int(row.get("level", 1)) <= level)


@cache
def lexicon(level: int) -> Lexicon:
    """Return all words of a level."""
    nouns = _read_nouns(level)
    verbs = _read_verbs(level, {kind for kind, members in nouns.items() if members})
    adjectives = {use: _read_adjectives(use, level) for use in ("attributive", "personal", "predicative")}
    determiners = {
        row["english"] or "-": Determiner(row["english"], decline_determiner(row["german"]), row["adjective_endings"])
        for row in read_table("determiners")
    }
    return Lexicon(
        nouns=nouns,
        gendered={(kind, g): tuple(n for n in members if n.gender == g) for kind, members in nouns.items() for g in "mfn"},
        adjectives={kind: tuple(a for a in adjectives["attributive"] if kind in a.kinds) for kind in nouns},
        predicates=(*adjectives["personal"], *adjectives["predicative"]),
        verbs=verbs,
        acting={(name, s): tuple(v for v in vs if s in v.subjects) for name, vs in verbs.items() for s in ("person", "animal")},
        singular=tuple(determiners[name] for name in SINGULAR_DETERMINERS[level].split()),
        plural=tuple(determiners[name] for name in PLURAL_DETERMINERS[level].split()),
        numbers=tuple((row["english"], row["german"]) for row in read_table("numbers", level)),
        times={
            tense: tuple(_time_parts(row) for row in read_table("times", level) if tense in row["tenses"].split())
            for tense in ("present", "past", "perfect", "future", "modal")
        },
        manners=tuple((row["english"], row["german"]) for row in read_table("manners", level)),
        prepositions=tuple(_preposition(row, nouns) for row in read_table("prepositions", level)),
        subordinators={
            tense: tuple(
                (row["english"], row["german"]) for row in read_table("subordinators", level) if tense in row["tenses"].split()
            )
            for tense in ("present", "past")
        },
    )


def _read_nouns(level: int) -> dict[str, tuple[Noun, ...]]:
    """Return the nouns of every class; a class may have none on a low level."""
    by_class: dict[str, list[Noun]] = {row["class"]: [] for row in read_table("nouns")}
    for row in read_table("nouns", level):
        singular, plural, gender = row["german"], row["german_plural"], GENDER[row["article"]]
        if plural:
            forms = decline_noun(singular, plural, gender, row["declension"] == "weak")
        else:
            forms = {(case, gender): singular for case in CASES}
        name = row["english"]
        plural_name = (row["english_plural"] or pluralize(name)) if plural else ""
        by_class[row["class"]].append(Noun(name, plural_name, forms, gender, row["class"]))
    return {kind: tuple(members) for kind, members in by_class.items()}


def _read_verbs(level: int, classes: set[str]) -> dict[str, tuple[Verb, ...]]:
    """Return the verbs of every table whose objects, if any, include one of the classes that have nouns on this level."""
    tables: dict[str, list[Verb]] = {row["table"]: [] for row in read_table("verbs")}
    for row in read_table("verbs", level):
        objects = row["objects"].split()
        if objects and not classes.intersection(objects):
            continue
        base, stem, preterite = row["english"], row["german"], row["preterite"]
        tables[row["table"]].append(
            Verb(
                base=base,
                third=third_person(base),
                past=row["past"] or past_tense(base),
                participle=row["participle"] or past_tense(base),
                particle=tuple(row["particle"].split()),
                infinitive=row["prefix"] + stem,
                prefix=row["prefix"],
                finite={
                    ("present", False): row["present"],
                    ("present", True): stem,
                    ("past", False): preterite,
                    ("past", True): plural_past(preterite),
                },
                auxiliary=row["auxiliary"],
                german_participle=row["german_participle"],
                subjects=tuple(row["subjects"].split()),
                objects=tuple(kind for kind in objects if kind in classes),
                marginal=tuple(row["marginal"].split()),
                object_case=row["object_case"],
                complement=row["complement"],
            )
        )
    return {name: tuple(verbs) for name, verbs in tables.items()}


def _read_adjectives(use: str, level: int) -> list[Adjective]:
    """Return the adjectives of one use, with the names of groups expanded to their classes."""
    return [
        Adjective(
            row["english"],
            row["german"],
            row["stem"],
            tuple(kind for name in row["classes"].split() for kind in GROUPS.get(name, (name,))),
            tuple(row["marginal"].split()),
        )
        for row in read_table("adjectives", level)
        if row["use"] == use
    ]


def _preposition(row: dict[str, str], nouns: dict[str, tuple[Noun, ...]]) -> Preposition:
    rest, motion = (row[column].replace("_", " ") for column in ("at_rest", "in_motion"))
    return Preposition(rest, motion, row["german"], tuple(kind for kind in row["classes"].split() if nouns[kind]))


def _time_parts(row: dict[str, str]) -> tuple[Pair, ...]:
    """Return the parts of a time adverbial, which are aligned one by one."""
    return tuple(zip(*(row[language].replace("_", " ").split("|") for language in ("english", "german"))))
