"""What there is to say of a scene: true statements, drawn at random."""

from collections.abc import Callable, Sequence
from random import Random

from regard.worlds.shapes.scene import RELATIONS, Scene, Shape, pick
from regard.worlds.shapes.statement import MARGIN, NUMBERS, Description, Phrase, Places, Statement, lie

MENTION = {"size": 0.4, "texture": 0.4, "colour": 0.85, "kind": 0.9}  # how often each is said
ASIDE = 0.25  # of the times that another texture would be said, "plain" is
ONE = 0.15  # of the times that "a" might do
THE = 0.3  # of the relations are between "the" shapes


def observe(scene: Scene, draws: Random) -> Statement:
    """Something that is true. A phrase is about all the shapes that it fits, so that there is no doubt which are meant."""
    while True:
        statement = pick(draws, FORMS if len(scene.shapes) > 1 else LONELY)(scene, draws)
        if statement is not None:
            return statement


def existence(scene: Scene, draws: Random) -> Statement:
    """ "two red circles" """
    return Statement((phrase(scene, describe(pick(draws, scene.shapes), draws), draws),))


def series(scene: Scene, draws: Random) -> Statement | None:
    """ "two red circles and a star" """
    phrases = listed(scene, tuple(range(len(scene.shapes))), 2 + int(draws.random() * 3), draws)
    return Statement(phrases) if len(phrases) > 1 else None


def whole(scene: Scene, draws: Random) -> Statement | None:
    """ "three shapes: two red circles and a star", "two red shapes: a circle and a star" """
    looks = Description()
    if draws.random() < 0.3:
        name = pick(draws, ("size", "texture", "colour"))
        looks = Description(**{name: getattr(pick(draws, scene.shapes), name)})
    places = looks.among(scene)
    phrases = listed(scene, places, len(places), draws, known=looks.said())
    meant = sum(len(each.looks.among(scene, places)) for each in phrases)
    if meant < len(places) or meant > 1 == len(phrases) or any(each.looks.kind is None for each in phrases):
        return None
    return Statement(phrases, whole=Phrase(NUMBERS[meant - 1], looks))


def listed(scene: Scene, places: Places, most: int, draws: Random, known: Sequence[str] = ()) -> tuple[Phrase, ...]:
    """At most so many phrases about different shapes in these places, without what is known of them all."""
    left = set(places)
    phrases: list[Phrase] = []
    while left and len(phrases) < most:
        looks = describe(scene.shapes[pick(draws, sorted(left))], draws, known)
        group = looks.among(scene, places)
        if not left.issuperset(group):
            break
        left.difference_update(group)
        phrases.append(phrase(scene, looks, draws, places))
    return tuple(phrases)


def relation(scene: Scene, draws: Random) -> Statement | None:
    """ "a red circle above two stars", "… and left of a cross" """
    number = 3 if len(scene.shapes) > 2 and draws.random() < 0.2 else 2
    looks = [describe(shape, draws) for shape in sorted(scene.shapes, key=lambda _: draws.random())[:number]]
    groups = [look.among(scene) for look in looks]
    if len(set().union(*groups)) < sum(map(len, groups)):
        return None
    ways = [[way for way in RELATIONS if lie(scene, groups[0], way, group, scene.size * MARGIN)] for group in groups[1:]]
    if not all(ways):
        return None
    definite = draws.random() < THE
    phrases = [phrase(scene, look, draws) for look in looks]
    phrases = [Phrase("the", each.looks) if definite and each.singular else each for each in phrases]
    return Statement(tuple(phrases), tuple(pick(draws, way) for way in ways))


def quality(scene: Scene, draws: Random) -> Statement | None:
    """ "the circle is red", "the red shape is a circle" """
    shape = pick(draws, scene.shapes)
    said = describe(shape, draws).said()
    told = [name for name in said if draws.random() < 0.5]
    subject = Description(**{name: getattr(shape, name) for name in said if name not in told})
    if not 0 < len(told) < len(said) or len(subject.among(scene)) > 1:
        return None
    return Statement((Phrase("the", subject),), quality=Description(**{name: getattr(shape, name) for name in told}))


FORMS: list[Callable[[Scene, Random], Statement | None]] = [existence, series, series, whole, *[relation] * 4, quality]
LONELY: list[Callable[[Scene, Random], Statement | None]] = [existence, existence, existence, whole, quality]


def describe(shape: Shape, draws: Random, known: Sequence[str] = ()) -> Description:
    """Some of what a shape looks like, its colour or kind at least, but nothing that is known."""
    while True:
        said = {name: getattr(shape, name) for name, often in MENTION.items() if name not in known and draws.random() < often}
        if said.get("texture") == "plain" and draws.random() > ASIDE:
            del said["texture"]
        if "colour" in said or "kind" in said:
            return Description(**said)


def phrase(scene: Scene, looks: Description, draws: Random, places: Places | None = None) -> Phrase:
    """All the shapes that look like that, in their number."""
    number = len(looks.among(scene, places))
    return Phrase("a" if number == 1 and draws.random() > ONE else NUMBERS[number - 1], looks)
