"""Random true statements about a scene."""

from collections.abc import Callable, Sequence
from random import Random

from regard.worlds.shapes.scene import RELATIONS, Scene, Shape, choose
from regard.worlds.shapes.statement import (
    NUMBERS,
    RELATION_MARGIN,
    Description,
    NounPhrase,
    ShapeIndices,
    Statement,
    all_related,
)

MENTION = {"size": 0.4, "texture": 0.4, "colour": 0.85, "kind": 0.9}  # probability that each property is mentioned
MENTION_PLAIN = 0.25  # probability that "plain" is kept where another texture would be mentioned
ONE = 0.15  # probability of "one" instead of "a"
THE = 0.3  # probability that a relation is between "the" shapes


def sample_statement(scene: Scene, rng: Random) -> Statement:
    """Return a true statement. A phrase refers to all shapes that it fits, so its referents are unambiguous."""
    while True:
        statement = choose(rng, STATEMENT_FORMS if len(scene.shapes) > 1 else SINGLE_SHAPE_FORMS)(scene, rng)
        if statement is not None:
            return statement


def _existence(scene: Scene, rng: Random) -> Statement:
    """Return a statement such as "two red circles"."""
    return Statement((_counted_phrase(scene, _sample_description(choose(rng, scene.shapes), rng), rng),))


def _enumeration(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "two red circles and a star"."""
    phrases = _sample_phrases(scene, tuple(range(len(scene.shapes))), 2 + int(rng.random() * 3), rng)
    return Statement(phrases) if len(phrases) > 1 else None


def _whole(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "three shapes: two red circles and a star" or "two red shapes: a circle and a star"."""
    looks = Description()
    if rng.random() < 0.3:
        name = choose(rng, ("size", "texture", "colour"))
        looks = Description(**{name: getattr(choose(rng, scene.shapes), name)})
    indices = looks.among(scene)
    phrases = _sample_phrases(scene, indices, len(indices), rng, known=looks.mentioned())
    covered = sum(len(phrase.looks.among(scene, indices)) for phrase in phrases)
    if covered < len(indices) or covered > 1 == len(phrases) or any(phrase.looks.kind is None for phrase in phrases):
        return None
    return Statement(phrases, whole=NounPhrase(NUMBERS[covered - 1], looks))


def _sample_phrases(
    scene: Scene, indices: ShapeIndices, limit: int, rng: Random, known: Sequence[str] = ()
) -> tuple[NounPhrase, ...]:
    """Return at most `limit` phrases about different shapes among these, without the properties known of all of them."""
    left = set(indices)
    phrases: list[NounPhrase] = []
    while left and len(phrases) < limit:
        looks = _sample_description(scene.shapes[choose(rng, sorted(left))], rng, known)
        group = looks.among(scene, indices)
        if not left.issuperset(group):
            break
        left.difference_update(group)
        phrases.append(_counted_phrase(scene, looks, rng, indices))
    return tuple(phrases)


def _relation(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "a red circle above two stars" or "… and left of a cross"."""
    number = 3 if len(scene.shapes) > 2 and rng.random() < 0.2 else 2
    looks = [_sample_description(shape, rng) for shape in sorted(scene.shapes, key=lambda _: rng.random())[:number]]
    groups = [look.among(scene) for look in looks]
    if len(set().union(*groups)) < sum(map(len, groups)):
        return None
    margin = scene.size * RELATION_MARGIN
    options = [[way for way in RELATIONS if all_related(scene, groups[0], way, group, margin)] for group in groups[1:]]
    if not all(options):
        return None
    definite = rng.random() < THE
    phrases = [_counted_phrase(scene, look, rng) for look in looks]
    phrases = [NounPhrase("the", phrase.looks) if definite and phrase.singular else phrase for phrase in phrases]
    return Statement(tuple(phrases), tuple(choose(rng, relations) for relations in options))


def _quality(scene: Scene, rng: Random) -> Statement | None:
    """Return a statement such as "the circle is red" or "the red shape is a circle"."""
    shape = choose(rng, scene.shapes)
    mentioned = _sample_description(shape, rng).mentioned()
    predicated = [name for name in mentioned if rng.random() < 0.5]
    subject = Description(**{name: getattr(shape, name) for name in mentioned if name not in predicated})
    if not 0 < len(predicated) < len(mentioned) or len(subject.among(scene)) > 1:
        return None
    quality = Description(**{name: getattr(shape, name) for name in predicated})
    return Statement((NounPhrase("the", subject),), quality=quality)


StatementForm = Callable[[Scene, Random], Statement | None]
STATEMENT_FORMS: list[StatementForm] = [_existence, _enumeration, _enumeration, _whole, *[_relation] * 4, _quality]
SINGLE_SHAPE_FORMS: list[StatementForm] = [_existence, _existence, _existence, _whole, _quality]


def _sample_description(shape: Shape, rng: Random, known: Sequence[str] = ()) -> Description:
    """Return some of a shape's properties, at least its colour or kind, but none that is known."""
    while True:
        values = {name: getattr(shape, name) for name, often in MENTION.items() if name not in known and rng.random() < often}
        if values.get("texture") == "plain" and rng.random() > MENTION_PLAIN:
            del values["texture"]
        if "colour" in values or "kind" in values:
            return Description(**values)


def _counted_phrase(scene: Scene, looks: Description, rng: Random, indices: ShapeIndices | None = None) -> NounPhrase:
    """Return a phrase for all shapes of this description, with their number."""
    number = len(looks.among(scene, indices))
    return NounPhrase("a" if number == 1 and rng.random() > ONE else NUMBERS[number - 1], looks)
