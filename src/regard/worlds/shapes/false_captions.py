"""False captions: true captions of a scene with one thing changed, and captions of other scenes."""

from dataclasses import replace
from random import Random

from regard.worlds.shapes.caption import realise
from regard.worlds.shapes.observe import sample_statement
from regard.worlds.shapes.scene import COLOURS, KINDS, OPPOSITE, RELATIONS, SIZES, TEXTURES, Scene, choose, sample_scene
from regard.worlds.shapes.statement import NUMBERS, Description, NounPhrase, Statement, is_true

VALUES = {"size": tuple(SIZES), "texture": TEXTURES, "colour": COLOURS, "kind": KINDS}


def false_captions(scene: Scene, number: int, rng: Random, near: float = 0.5) -> list[str]:
    """Return distinct captions that are false of a scene with any margin: a fraction `near` are its own with one thing changed
    (hard negatives), the rest belong to other scenes. They name no held-out combination unless the scene has one."""
    bounds = (len(scene.shapes), len(scene.shapes))
    found: dict[str, None] = {}
    hard = rng.random() < near
    while len(found) < number:
        statement = sample_statement(scene if hard else sample_scene(rng, scene.size, bounds, held_out=scene.novel), rng)
        changed = perturb(statement, rng) if hard else statement
        if (
            statement.names_held_out() == scene.novel  # as the true captions do
            and changed
            and (scene.novel or not changed.names_held_out())
            and not is_true(changed, scene, margin=0)
        ):
            found[" ".join(realise(changed, rng).words)] = None
            hard = rng.random() < near
    return list(found)


def perturb(statement: Statement, rng: Random) -> Statement | None:
    """Change a property, a number or a relation, or swap a property between two phrases."""
    changes = (
        _change_property,
        _change_property,
        _change_number,
        _change_relation,
        _change_relation,
        _swap_property,
        _swap_property,
    )
    return choose(rng, changes)(statement, rng)


def _change_property(statement: Statement, rng: Random) -> Statement | None:
    """Return the statement with another size, texture, colour or kind; an unmentioned one may be added."""
    if statement.quality:
        name = choose(rng, statement.quality.mentioned())
        return replace(statement, quality=_with_other_value(statement.quality, name, rng))
    i = int(rng.random() * len(statement.phrases))
    name = choose(rng, tuple(VALUES))
    if statement.whole and getattr(statement.whole.looks, name):
        return None
    return _with_description(statement, i, _with_other_value(statement.phrases[i].looks, name, rng))


def _change_number(statement: Statement, rng: Random) -> Statement | None:
    """Return the statement with another number; not where a whole is named, since its parts would contradict it."""
    if statement.whole or statement.quality:
        return None
    i = int(rng.random() * len(statement.phrases))
    phrase = statement.phrases[i]
    return _with_phrase(statement, i, NounPhrase(choose(rng, [n for n in NUMBERS if n != phrase.determiner]), phrase.looks))


def _change_relation(statement: Statement, rng: Random) -> Statement | None:
    """Return the statement with the opposite relation, or any other."""
    if not statement.relations:
        return None
    i = int(rng.random() * len(statement.relations))
    old = statement.relations[i]
    new = OPPOSITE[old] if rng.random() < 0.6 else choose(rng, [relation for relation in RELATIONS if relation != old])
    return replace(statement, relations=(*statement.relations[:i], new, *statement.relations[i + 1 :]))


def _swap_property(statement: Statement, rng: Random) -> Statement | None:
    """Swap a property of two phrases: "a red circle and a blue star" becomes "a blue circle and a red star"."""
    if len(statement.phrases) < 2:
        return None
    i, j = sorted(range(len(statement.phrases)), key=lambda _: rng.random())[:2]
    one, other = statement.phrases[i].looks, statement.phrases[j].looks
    shared = [name for name in one.mentioned() if name in other.mentioned()]
    if not shared:
        return None
    name = choose(rng, shared)
    changed = _with_description(statement, i, replace(one, **{name: getattr(other, name)}))
    return _with_description(changed, j, replace(other, **{name: getattr(one, name)}))


def _with_other_value(looks: Description, name: str, rng: Random) -> Description:
    return replace(looks, **{name: choose(rng, [value for value in VALUES[name] if value != getattr(looks, name)])})


def _with_description(statement: Statement, i: int, looks: Description) -> Statement:
    return _with_phrase(statement, i, replace(statement.phrases[i], looks=looks))


def _with_phrase(statement: Statement, i: int, phrase: NounPhrase) -> Statement:
    return replace(statement, phrases=(*statement.phrases[:i], phrase, *statement.phrases[i + 1 :]))
