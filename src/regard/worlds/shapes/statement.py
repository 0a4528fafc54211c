"""The meaning of a caption, and whether it is true of a scene.

"a" means at least one; "one", "two", "three" and "four" mean exactly that many; "the" means that there is no other. The
phrases of a statement refer to different shapes; after a colon, only to those named before it. What is said of several
shapes is said of each.
"""

from dataclasses import dataclass, fields, replace
from itertools import product

from regard.worlds.shapes.scene import HELD_OUT, Scene, Shape, has_relation

NUMBERS = ("one", "two", "three", "four")
SINGULAR = ("a", "the", "one")
ShapeIndices = tuple[int, ...]  # of shapes in their scene
RELATION_MARGIN = 3 / 16  # of the image width: the least distance between centres in the direction of a relation


@dataclass(frozen=True, slots=True)
class Description:
    """The properties of shapes that are mentioned."""

    size: str | None = None
    texture: str | None = None
    colour: str | None = None
    kind: str | None = None

    def fits(self, shape: Shape) -> bool:
        """Return whether a shape has all mentioned properties."""
        return (
            self.size in (None, shape.size)
            and self.texture in (None, shape.texture)
            and self.colour in (None, shape.colour)
            and self.kind in (None, shape.kind)
        )

    def mentioned(self) -> list[str]:
        """Return the names of the mentioned properties."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    def among(self, scene: Scene, indices: ShapeIndices | None = None) -> ShapeIndices:
        """Return the shapes that it fits, of the whole scene or among some of them."""
        return tuple(i for i, shape in enumerate(scene.shapes) if (indices is None or i in indices) and self.fits(shape))


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A reference to some shapes: "two small circles"."""

    determiner: str  # a, the, or one of NUMBERS
    looks: Description

    @property
    def singular(self) -> bool:
        """Whether the determiner takes a singular noun."""
        return self.determiner in SINGULAR

    def referents(self, scene: Scene, indices: ShapeIndices | None = None) -> list[ShapeIndices]:
        """Return the groups of shapes that it may refer to, of the whole scene or among some of them."""
        found = self.looks.among(scene, indices)
        if self.determiner == "a":
            return [(i,) for i in found]
        number = 1 if self.determiner == "the" else NUMBERS.index(self.determiner) + 1
        return [found] if len(found) == number else []


@dataclass(frozen=True, slots=True)
class Statement:
    """The claim that such shapes exist, and possibly how they are related."""

    phrases: tuple[NounPhrase, ...]
    relations: tuple[str, ...] = ()  # of the first phrase to the second, the third …: "a circle above a square"
    whole: NounPhrase | None = None  # what the phrases together make up: "two shapes: a circle and a square"
    quality: Description | None = None  # of the first phrase: "the circle is red"

    def names_held_out(self) -> bool:
        """Return whether it ascribes a held-out combination of colour and kind to something."""
        looks = [phrase.looks for phrase in self.phrases]
        if self.quality:
            looks = [_merge(looks[0], self.quality)]
        if self.whole:
            looks = [_merge(self.whole.looks, look) for look in looks]
        return any((look.colour, look.kind) in HELD_OUT for look in looks)


def _merge(one: Description, more: Description) -> Description:
    return replace(one, **{name: getattr(more, name) for name in more.mentioned()})


def is_true(statement: Statement, scene: Scene, margin: float | None = None) -> bool:
    """Return whether the phrases can refer to different shapes for which everything holds; `margin` is that of relations, in
    pixels."""
    margin = scene.size * RELATION_MARGIN if margin is None else margin
    wholes = [None] if statement.whole is None else statement.whole.referents(scene)
    return any(
        _is_true_for(statement, groups, scene, margin) and (whole is None or len(whole) == sum(map(len, groups)))
        for whole in wholes
        for groups in product(*(phrase.referents(scene, whole) for phrase in statement.phrases))
    )


def _is_true_for(statement: Statement, groups: tuple[ShapeIndices, ...], scene: Scene, margin: float) -> bool:
    """Return whether a statement holds if its phrases refer to these groups of shapes."""
    referents = [i for group in groups for i in group]
    return (
        len(set(referents)) == len(referents)
        and (statement.quality is None or all(statement.quality.fits(scene.shapes[i]) for i in groups[0]))
        and all(
            all_related(scene, groups[0], relation, group, margin) for relation, group in zip(statement.relations, groups[1:])
        )
    )


def all_related(scene: Scene, ones: ShapeIndices, relation: str, others: ShapeIndices, margin: float) -> bool:
    """Return whether each shape of one group has a relation to each shape of another."""
    return all(has_relation(scene.shapes[one], relation, scene.shapes[other], margin) for one in ones for other in others)
