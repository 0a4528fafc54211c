"""What there is to say of a scene: true statements, drawn at random."""

from collections.abc import Callable, Sequence
from random import Random

from regard.worlds.shapes.scene import RELATIONS, Scene, Shape, choose
from regard.worlds.shapes.statement import NUMBERS, RELATION_MARGIN, Description, NounPhrase, ShapeIndices, Statement, all_related

MENTION = {"size": 0.4, "texture": 0.4, "colour": 0.85, "kind": 0.9}  # how often each is said
ASIDE = 0.25  # of the times that another texture would be said, "plain" is
ONE = 0.15  # of the times that "a" might do
THE = 0.3  # of the relations are between "the" shapes


def sample_statement(scene: Scene, draws: Random) -> Statement:
    """Something that is true. A phrase is about all the shapes that it fits, so that there is no doubt which are meant."""
    while True:
        statement = choose(draws, STATEMENT_FORMS if len(scene.shapes) > 1 else SINGLE_SHAPE_FORMS)(scene, draws)
        if statement is not None:
            return statement


def sample_existence(scene: Scene, draws: Random) -> Statement:
    """ "two red circles" """
    return Statement((counted_phrase(scene, sample_description(choose(draws, scene.shapes), draws), draws),))


def sample_list(scene: Scene, draws: Random) -> Statement | None:
    """ "two red circles and a star" """
    phrases = sample_phrases(scene, tuple(range(len(scene.shapes))), 2 + int(draws.random() * 3), draws)
    return Statement(phrases) if len(phrases) > 1 else None


def sample_whole(scene: Scene, draws: Random) -> Statement | None:
    """ "three shapes: two red circles and a star", "two red shapes: a circle and a star" """
    looks = Description()
    if draws.random() < 0.3:
        name = choose(draws, ("size", "texture", "colour"))
        looks = Description(**{name: getattr(choose(draws, scene.shapes), name)})
    places = looks.among(scene)
    phrases = sample_phrases(scene, places, len(places), draws, known=looks.said())
    meant = sum(len(each.looks.among(scene, places)) for each in phrases)
    if meant < len(places) or meant > 1 == len(phrases) or any(each.looks.kind is None for each in phrases):
        return None
    return Statement(phrases, whole=NounPhrase(NUMBERS[meant - 1], looks))


def sample_phrases(
    scene: Scene, places: ShapeIndices, most: int, draws: Random, known: Sequence[str] = ()
) -> tuple[NounPhrase, ...]:
    """At most so many phrases about different shapes in these places, without what is known of them all."""
    left = set(places)
    phrases: list[NounPhrase] = []
    while left and len(phrases) < most:
        looks = sample_description(scene.shapes[choose(draws, sorted(left))], draws, known)
        group = looks.among(scene, places)
        if not left.issuperset(group):
            break
        left.difference_update(group)
        phrases.append(counted_phrase(scene, looks, draws, places))
    return tuple(phrases)


def sample_relation(scene: Scene, draws: Random) -> Statement | None:
    """ "a red circle above two stars", "… and left of a cross" """
    number = 3 if len(scene.shapes) > 2 and draws.random() < 0.2 else 2
    looks = [sample_description(shape, draws) for shape in sorted(scene.shapes, key=lambda _: draws.random())[:number]]
    groups = [look.among(scene) for look in looks]
    if len(set().union(*groups)) < sum(map(len, groups)):
        return None
    ways = [
        [way for way in RELATIONS if all_related(scene, groups[0], way, group, scene.size * RELATION_MARGIN)]
        for group in groups[1:]
    ]
    if not all(ways):
        return None
    definite = draws.random() < THE
    phrases = [counted_phrase(scene, look, draws) for look in looks]
    phrases = [NounPhrase("the", each.looks) if definite and each.singular else each for each in phrases]
    return Statement(tuple(phrases), tuple(choose(draws, way) for way in ways))


def sample_quality(scene: Scene, draws: Random) -> Statement | None:
    """ "the circle is red", "the red shape is a circle" """
    shape = choose(draws, scene.shapes)
    said = sample_description(shape, draws).said()
    told = [name for name in said if draws.random() < 0.5]
    subject = Description(**{name: getattr(shape, name) for name in said if name not in told})
    if not 0 < len(told) < len(said) or len(subject.among(scene)) > 1:
        return None
    return Statement((NounPhrase("the", subject),), quality=Description(**{name: getattr(shape, name) for name in told}))


STATEMENT_FORMS: list[Callable[[Scene, Random], Statement | None]] = [
    sample_existence,
    sample_list,
    sample_list,
    sample_whole,
    *[sample_relation] * 4,
    sample_quality,
]
SINGLE_SHAPE_FORMS: list[Callable[[Scene, Random], Statement | None]] = [
    sample_existence,
    sample_existence,
    sample_existence,
    sample_whole,
    sample_quality,
]


def sample_description(shape: Shape, draws: Random, known: Sequence[str] = ()) -> Description:
    """Some of what a shape looks like, its colour or kind at least, but nothing that is known."""
    while True:
        said = {name: getattr(shape, name) for name, often in MENTION.items() if name not in known and draws.random() < often}
        if said.get("texture") == "plain" and draws.random() > ASIDE:
            del said["texture"]
        if "colour" in said or "kind" in said:
            return Description(**said)


def counted_phrase(scene: Scene, looks: Description, draws: Random, places: ShapeIndices | None = None) -> NounPhrase:
    """All the shapes that look like that, in their number."""
    number = len(looks.among(scene, places))
    return NounPhrase("a" if number == 1 and draws.random() > ONE else NUMBERS[number - 1], looks)
