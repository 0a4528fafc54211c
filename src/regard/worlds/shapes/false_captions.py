"""False captions: the true ones of a scene with one thing changed, and those of other scenes."""

from dataclasses import replace
from random import Random

from regard.worlds.shapes.caption import say
from regard.worlds.shapes.observe import observe
from regard.worlds.shapes.scene import COLOURS, KINDS, OPPOSITE, RELATIONS, SIZES, TEXTURES, Scene, compose, pick
from regard.worlds.shapes.statement import NUMBERS, Description, Phrase, Statement, true_of

VALUES = {"size": tuple(SIZES), "texture": TEXTURES, "colour": COLOURS, "kind": KINDS}


def false_captions(scene: Scene, number: int, draws: Random, near: float = 0.5) -> list[str]:
    """Different captions that are false of a scene, by any margin: `near` of them its own with one thing changed, the rest those
    of other scenes. Held-out combinations of colour and kind are in none of them, unless the scene has one itself."""
    bounds = (len(scene.shapes), len(scene.shapes))
    found: dict[str, None] = {}
    hard = draws.random() < near
    while len(found) < number:
        statement = observe(scene if hard else compose(draws, scene.size, bounds, held_out=scene.novel), draws)
        changed = twist(statement, draws) if hard else statement
        if (
            statement.names_held_out() == scene.novel  # as the true captions do
            and changed
            and (scene.novel or not changed.names_held_out())
            and not true_of(changed, scene, margin=0)
        ):
            found[" ".join(say(changed, draws).words)] = None
            hard = draws.random() < near
    return list(found)


def twist(statement: Statement, draws: Random) -> Statement | None:
    """One thing changed: a property, a number, a relation; or a property exchanged between two phrases."""
    return pick(draws, (repaint, repaint, recount, turn, turn, exchange, exchange))(statement, draws)


def repaint(statement: Statement, draws: Random) -> Statement | None:
    """Another size, texture, colour or kind; one that was not mentioned may be."""
    if statement.quality:
        name = pick(draws, statement.quality.said())
        return replace(statement, quality=altered(statement.quality, name, draws))
    at = int(draws.random() * len(statement.phrases))
    name = pick(draws, tuple(VALUES))
    if statement.whole and getattr(statement.whole.looks, name):
        return None
    return with_looks(statement, at, altered(statement.phrases[at].looks, name, draws))


def recount(statement: Statement, draws: Random) -> Statement | None:
    """Another number; where there is a whole, the parts would give it away."""
    if statement.whole or statement.quality:
        return None
    at = int(draws.random() * len(statement.phrases))
    phrase = statement.phrases[at]
    return replaced(statement, at, Phrase(pick(draws, [n for n in NUMBERS if n != phrase.determiner]), phrase.looks))


def turn(statement: Statement, draws: Random) -> Statement | None:
    """The opposite relation, or any other."""
    if not statement.relations:
        return None
    at = int(draws.random() * len(statement.relations))
    was = statement.relations[at]
    new = OPPOSITE[was] if draws.random() < 0.6 else pick(draws, [way for way in RELATIONS if way != was])
    return replace(statement, relations=(*statement.relations[:at], new, *statement.relations[at + 1 :]))


def exchange(statement: Statement, draws: Random) -> Statement | None:
    """ "a red circle and a blue star" for "a blue circle and a red star" """
    if len(statement.phrases) < 2:
        return None
    one, other = sorted(range(len(statement.phrases)), key=lambda _: draws.random())[:2]
    looks, others = statement.phrases[one].looks, statement.phrases[other].looks
    both = [name for name in looks.said() if name in others.said()]
    if not both:
        return None
    name = pick(draws, both)
    changed = with_looks(statement, one, replace(looks, **{name: getattr(others, name)}))
    return with_looks(changed, other, replace(others, **{name: getattr(looks, name)}))


def altered(looks: Description, name: str, draws: Random) -> Description:
    return replace(looks, **{name: pick(draws, [value for value in VALUES[name] if value != getattr(looks, name)])})


def with_looks(statement: Statement, at: int, looks: Description) -> Statement:
    return replaced(statement, at, replace(statement.phrases[at], looks=looks))


def replaced(statement: Statement, at: int, phrase: Phrase) -> Statement:
    return replace(statement, phrases=(*statement.phrases[:at], phrase, *statement.phrases[at + 1 :]))
