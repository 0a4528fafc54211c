"""What a caption says, and whether it is true of a scene.

"a" means at least one; "one", "two", "three" and "four" mean so many and no more; "the" means that there is no other. Phrases of
one statement mean different shapes; after a colon, only those named before it. What is said of several shapes is said of each.
"""

from dataclasses import dataclass, fields, replace
from itertools import product

from regard.worlds.shapes.scene import HELD_OUT, Scene, Shape, has_relation

NUMBERS = ("one", "two", "three", "four")
SINGULAR = ("a", "the", "one")
ShapeIndices = tuple[int, ...]  # of shapes in their scene
RELATION_MARGIN = 3 / 16  # of the picture: by so much is one centre above another, or more


@dataclass(frozen=True, slots=True)
class Description:
    """What shapes look like, as far as it is said."""

    size: str | None = None
    texture: str | None = None
    colour: str | None = None
    kind: str | None = None

    def fits(self, shape: Shape) -> bool:
        return (
            self.size in (None, shape.size)
            and self.texture in (None, shape.texture)
            and self.colour in (None, shape.colour)
            and self.kind in (None, shape.kind)
        )

    def said(self) -> list[str]:
        """The properties that are mentioned, by name."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    def among(self, scene: Scene, places: ShapeIndices | None = None) -> ShapeIndices:
        """The shapes that it fits, of all or of those in some places."""
        return tuple(
            place for place, shape in enumerate(scene.shapes) if (places is None or place in places) and self.fits(shape)
        )


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """Some shapes: "two small circles"."""

    determiner: str  # a, the, or one of NUMBERS
    looks: Description

    @property
    def singular(self) -> bool:
        return self.determiner in SINGULAR

    def meanings(self, scene: Scene, places: ShapeIndices | None = None) -> list[ShapeIndices]:
        """The groups of shapes that it may mean, among those in some places."""
        found = self.looks.among(scene, places)
        if self.determiner == "a":
            return [(place,) for place in found]
        number = 1 if self.determiner == "the" else NUMBERS.index(self.determiner) + 1
        return [found] if len(found) == number else []


@dataclass(frozen=True, slots=True)
class Statement:
    """That there are such shapes; and perhaps more of them."""

    phrases: tuple[NounPhrase, ...]
    relations: tuple[str, ...] = ()  # of the first phrase to the second, the third …: "a circle above a square"
    whole: NounPhrase | None = None  # what the phrases are all of: "two shapes: a circle and a square"
    quality: Description | None = None  # of the first phrase: "the circle is red"

    def names_held_out(self) -> bool:
        """Whether it says of something that it has a held-out combination of colour and kind."""
        looks = [phrase.looks for phrase in self.phrases]
        if self.quality:
            looks = [merge_descriptions(looks[0], self.quality)]
        if self.whole:
            looks = [merge_descriptions(self.whole.looks, look) for look in looks]
        return any((look.colour, look.kind) in HELD_OUT for look in looks)


def merge_descriptions(one: Description, more: Description) -> Description:
    return replace(one, **{name: getattr(more, name) for name in more.said()})


def is_true(statement: Statement, scene: Scene, margin: float | None = None) -> bool:
    """Whether the phrases can mean different shapes for which all of it holds. Whoever takes the relations more or less narrowly
    gives a margin in pixels."""
    margin = scene.size * RELATION_MARGIN if margin is None else margin
    wholes = [None] if statement.whole is None else statement.whole.meanings(scene)
    return any(
        is_true_for(statement, groups, scene, margin) and (whole is None or len(whole) == sum(map(len, groups)))
        for whole in wholes
        for groups in product(*(phrase.meanings(scene, whole) for phrase in statement.phrases))
    )


def is_true_for(statement: Statement, groups: tuple[ShapeIndices, ...], scene: Scene, margin: float) -> bool:
    """Whether it does if its phrases mean these groups of shapes."""
    meant = [place for group in groups for place in group]
    return (
        len(set(meant)) == len(meant)
        and (statement.quality is None or all(statement.quality.fits(scene.shapes[place]) for place in groups[0]))
        and all(
            all_related(scene, groups[0], relation, group, margin) for relation, group in zip(statement.relations, groups[1:])
        )
    )


def all_related(scene: Scene, ones: ShapeIndices, relation: str, others: ShapeIndices, margin: float) -> bool:
    """Whether each of some shapes lies that way from each of others."""
    return all(has_relation(scene.shapes[one], relation, scene.shapes[other], margin) for one in ones for other in others)
