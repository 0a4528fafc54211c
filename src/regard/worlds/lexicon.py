"""The tables of words, read once and cut to a level of difficulty."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from regard.worlds import english, german, nouns, verbs, words
from regard.worlds.german import InflectionTable, Verb

GENDER = {"der": "m", "die": "f", "das": "n"}
COLOURED = ("building", "container", "device", "furniture", "garment", "instrument", "part", "vehicle")
GROUPS = {"coloured": COLOURED, "thing": (*COLOURED, "food", "plant", "room", "text", "tool")}


class Noun(NamedTuple):
    singular: str
    plural: str  # "" where there is none
    forms: InflectionTable  # German, by case and genus
    gender: str
    kind: str  # its class: animal, food …


class Adjective(NamedTuple):
    english: str
    german: str
    stem: str  # what takes endings: teuer, but teur-
    kinds: tuple[str, ...]
    pinch: tuple[str, ...] = ()


class Determiner(NamedTuple):
    english: str  # "" for none
    forms: InflectionTable
    pattern: str  # of the adjective after it: weak, mixed, strong


class TimeAdverbial(NamedTuple):
    english: tuple[tuple[str, ...], ...]  # segments, each aligned with the German segment of the same rank
    german: tuple[tuple[str, ...], ...]
    tenses: tuple[str, ...]


class Preposition(NamedTuple):
    rest: tuple[str, ...]
    motion: tuple[str, ...]
    german: str
    kinds: tuple[str, ...]


class Lexicon(NamedTuple):
    nouns: dict[str, tuple[Noun, ...]]  # by class
    gendered: dict[tuple[str, str], tuple[Noun, ...]]  # by class and gender
    adjectives: dict[str, tuple[Adjective, ...]]  # by class, before the noun
    predicates: tuple[Adjective, ...]  # after the verb
    verbs: dict[str, tuple[Verb, ...]]  # by the name of their table
    acting: dict[tuple[str, str], tuple[Verb, ...]]  # by the name of their table and the class of their subject
    singular: tuple[Determiner, ...]
    plural: tuple[Determiner, ...]
    numbers: tuple[tuple[str, str], ...]
    times: dict[str, tuple[TimeAdverbial, ...]]  # by tense
    manners: tuple[tuple[str, str], ...]
    places: tuple[Preposition, ...]
    subordinators: dict[str, tuple[tuple[str, str], ...]]  # by tense


def lines(text: str, level: int) -> Iterator[str]:
    """The lines of a table up to a level, without their level."""
    for line in text.strip().splitlines():
        if line[:1].isdigit() and int(line[0]) <= level:
            yield line[2:]


def fields(line: str) -> list[str]:
    return [field.strip() for field in line.split("=")]


def spread(kinds: str) -> tuple[str, ...]:
    """Class names, those of groups spelt out."""
    return tuple(kind for name in kinds.split() for kind in GROUPS.get(name, (name,)))


def read_nouns(level: int) -> dict[str, tuple[Noun, ...]]:
    found: dict[str, tuple[Noun, ...]] = {}
    for paragraph in nouns.DICTIONARY.strip().split("\n\n"):
        kind, _, body = paragraph.partition("\n")
        found[kind] = tuple(noun(line, kind) for line in lines(body, level))
    return found


def noun(line: str, kind: str) -> Noun:
    article, singular, plural, name = line.split()
    name, _, names = name.partition("/")
    gender = GENDER[article]
    if plural == "-":
        return Noun(name, "", {(case, gender): singular for case in german.CASES}, gender, kind)
    forms = german.decline_noun(singular, plural, gender, singular in nouns.WEAK)
    return Noun(name, names or english.pluralize(name), forms, gender, kind)


def verb(line: str) -> Verb:
    name, forms, subjects, *rest = fields(line)
    name, _, place = name.partition(" ")
    name, *irregular = name.split("/")
    base, *particle = name.split("_")
    past, participle = irregular or (english.past_tense(base), english.past_tense(base))
    infinitive, present, preterite, perfect, partizip = forms.split()
    prefix, _, stem = infinitive.rpartition("|")
    finite = {
        ("present", False): present,
        ("present", True): stem,
        ("past", False): preterite,
        ("past", True): german.plural_past(preterite),
    }
    objects = rest[0].split() if rest else []
    governs = "dative" if "dative" in objects else "accusative"
    fitting, _, pinch = subjects.partition("+")
    return Verb(
        base,
        english.third_person(base),
        past,
        participle,
        tuple(particle),
        prefix + stem,
        prefix,
        finite,
        perfect,
        partizip,
        tuple(fitting.split()),
        tuple(o for o in objects if o != "dative"),
        tuple(pinch.split()),
        governs,
        place,
    )


def read_verbs(level: int) -> dict[str, tuple[Verb, ...]]:
    tables = ("TRANSITIVE", "GIVING", "ALONE", "RESTING", "MOVING", "SAYING", "HANDLING", "IT_DOES", "IT_UNDERGOES")
    found = {name.lower(): tuple(map(verb, lines(getattr(verbs, name), level))) for name in tables}
    # On a low level a class may still have no nouns: no verb may ask for one.
    peopled = {kind for kind, members in read_nouns(level).items() if members}
    return {
        name: tuple(
            v._replace(objects=tuple(o for o in v.objects if o in peopled))
            for v in listed
            if not v.objects or set(v.objects) & peopled
        )
        for name, listed in found.items()
    }


def adjective(line: str) -> Adjective:
    forms, kinds = fields(line)
    name, word, *stem = forms.split()
    fitting, _, pinch = kinds.partition("+")
    root = stem[0] if stem else word.removesuffix("e")
    return Adjective(name.replace("_", " "), word, root, spread(fitting), tuple(pinch.split()))


def determiners(level: int) -> tuple[tuple[Determiner, ...], tuple[Determiner, ...]]:
    """Those of the singular and those of the plural, the commonest repeated."""
    known = {
        name: Determiner(name if name != "-" else "", german.decline_determiner(stem), pattern)
        for name, stem, pattern in (line.split() for line in words.DETERMINERS.strip().splitlines())
    }
    one, more = words.SINGULAR[level], words.PLURAL[level]
    return tuple(known[name] for name in one.split()), tuple(known[name] for name in more.split())


def segments(phrase: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(part.split("_")) for part in phrase.split("|"))


def pairs(text: str, level: int) -> tuple[tuple[str, str], ...]:
    return tuple((line.split()[0], line.split()[1]) for line in lines(text, level))


def times(level: int) -> dict[str, tuple[TimeAdverbial, ...]]:
    """The adverbs of time that go with a tense."""
    read = [fields(line) for line in lines(words.TIMES, level)]
    every = [TimeAdverbial(segments(e), segments(g), tuple(tenses.split())) for e, g, tenses in read]
    return {tense: tuple(t for t in every if tense in t.tenses) for tense in ("present", "past", "perfect", "future", "modal")}


@cache
def lexicon(level: int) -> Lexicon:
    by_class = read_nouns(level)
    listed = read_verbs(level)
    attributive = [adjective(line) for line in lines(words.ATTRIBUTIVE, level)]
    personal = [Adjective(e, g, g, ("person",)) for e, g in pairs(words.PERSONAL, level)]
    predicative = [adjective(line) for line in lines(words.PREDICATIVE, level)]
    singular, plural = determiners(level)
    places = [fields(line) for line in lines(words.PLACES, level)]
    subordinators = [fields(line) for line in lines(words.SUBORDINATORS, level)]
    subjects = ("person", "animal")
    return Lexicon(
        nouns=by_class,
        gendered={(kind, g): tuple(n for n in ns if n.gender == g) for kind, ns in by_class.items() for g in "mfn"},
        adjectives={kind: tuple(a for a in attributive if kind in a.kinds) for kind in by_class},
        predicates=tuple(personal + predicative),
        verbs=listed,
        acting={(name, s): tuple(v for v in vs if s in v.subjects) for name, vs in listed.items() for s in subjects},
        singular=singular,
        plural=plural,
        numbers=pairs(words.NUMBERS, level),
        times=times(level),
        manners=pairs(words.MANNERS, level),
        places=tuple(
            Preposition(tuple(r.split("_")), tuple(m.split("_")), g, tuple(k for k in kinds.split() if by_class[k]))
            for r, m, g, kinds in places
        ),
        subordinators={
            tense: tuple((e, g) for e, g, tenses in subordinators if tense in tenses) for tense in ("present", "past")
        },
    )
