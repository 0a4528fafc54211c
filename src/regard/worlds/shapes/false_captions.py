"""False captions: the true ones of a scene with one thing changed, and those of other scenes."""

from dataclasses import replace
from random import Random

from regard.worlds.shapes.caption import realise
from regard.worlds.shapes.observe import sample_statement
from regard.worlds.shapes.scene import COLOURS, KINDS, OPPOSITE, RELATIONS, SIZES, TEXTURES, Scene, choose, sample_scene
from regard.worlds.shapes.statement import NUMBERS, Description, NounPhrase, Statement, is_true

VALUES = {"size": tuple(SIZES), "texture": TEXTURES, "colour": COLOURS, "kind": KINDS}


def false_captions(scene: Scene, number: int, draws: Random, near: float = 0.5) -> list[str]:
    """Different captions that are false of a scene, by any margin: `near` of them its own with one thing changed, the rest those
    of other scenes. Held-out combinations of colour and kind are in none of them, unless the scene has one itself."""
    bounds = (len(scene.shapes), len(scene.shapes))
    found: dict[str, None] = {}
    hard = draws.random() < near
    while len(found) < number:
        statement = sample_statement(scene if hard else sample_scene(draws, scene.size, bounds, held_out=scene.novel), draws)
        changed = perturb(statement, draws) if hard else statement
        if (
            statement.names_held_out() == scene.novel  # as the true captions do
            and changed
            and (scene.novel or not changed.names_held_out())
            and not is_true(changed, scene, margin=0)
        ):
            found[" ".join(realise(changed, draws).words)] = None
            hard = draws.random() < near
    return list(found)


def perturb(statement: Statement, draws: Random) -> Statement | None:
    """One thing changed: a property, a number, a relation; or a property exchanged between two phrases."""
    return choose(
        draws, (change_property, change_property, change_number, change_relation, change_relation, swap_property, swap_property)
    )(statement, draws)


def change_property(statement: Statement, draws: Random) -> Statement | None:
    """Another size, texture, colour or kind; one that was not mentioned may be."""
    if statement.quality:
        name = choose(draws, statement.quality.said())
        return replace(statement, quality=with_other_value(statement.quality, name, draws))
    at = int(draws.random() * len(statement.phrases))
    name = choose(draws, tuple(VALUES))
    if statement.whole and getattr(statement.whole.looks, name):
        return None
    return with_description(statement, at, with_other_value(statement.phrases[at].looks, name, draws))


def change_number(statement: Statement, draws: Random) -> Statement | None:
    """Another number; where there is a whole, the parts would give it away."""
    if statement.whole or statement.quality:
        return None
    at = int(draws.random() * len(statement.phrases))
    phrase = statement.phrases[at]
    return with_phrase(statement, at, NounPhrase(choose(draws, [n for n in NUMBERS if n != phrase.determiner]), phrase.looks))


def change_relation(statement: Statement, draws: Random) -> Statement | None:
    """The opposite relation, or any other."""
    if not statement.relations:
        return None
    at = int(draws.random() * len(statement.relations))
    was = statement.relations[at]
    new = OPPOSITE[was] if draws.random() < 0.6 else choose(draws, [way for way in RELATIONS if way != was])
    return replace(statement, relations=(*statement.relations[:at], new, *statement.relations[at + 1 :]))


def swap_property(statement: Statement, draws: Random) -> Statement | None:
    """ "a red circle and a blue star" for "a blue circle and a red star" """
    if len(statement.phrases) < 2:
        return None
    one, other = sorted(range(len(statement.phrases)), key=lambda _: draws.random())[:2]
    looks, others = statement.phrases[one].looks, statement.phrases[other].looks
    both = [name for name in looks.said() if name in others.said()]
    if not both:
        return None
    name = choose(draws, both)
    changed = with_description(statement, one, replace(looks, **{name: getattr(others, name)}))
    return with_description(changed, other, replace(others, **{name: getattr(looks, name)}))


def with_other_value(looks: Description, name: str, draws: Random) -> Description:
    return replace(looks, **{name: choose(draws, [value for value in VALUES[name] if value != getattr(looks, name)])})


def with_description(statement: Statement, at: int, looks: Description) -> Statement:
    return with_phrase(statement, at, replace(statement.phrases[at], looks=looks))


def with_phrase(statement: Statement, at: int, phrase: NounPhrase) -> Statement:
    return replace(statement, phrases=(*statement.phrases[:at], phrase, *statement.phrases[at + 1 :]))
