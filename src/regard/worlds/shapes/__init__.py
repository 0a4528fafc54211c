"""A world of shapes: small pictures, true and false captions, the box of every noun phrase, labels; all of it known.

A picture is a pure function of the seed; its shapes alone decide whether it belongs to train, valid or test. Eight of the 48
combinations of colour and kind are in none of these, neither in pictures nor in captions, and in every picture and caption of
the split "composition".
"""

from regard.worlds.shapes.caption import GroundedCaption, GroundedPhrase, captions
from regard.worlds.shapes.false_captions import false_captions
from regard.worlds.shapes.parse import parse_caption
from regard.worlds.shapes.recognise import image_satisfies, recognise_scene
from regard.worlds.shapes.render import render_scene
from regard.worlds.shapes.scene import COLOURS, HELD_OUT, KINDS, SIZES, TEXTURES, Box, Scene, Shape
from regard.worlds.shapes.statement import Description, NounPhrase, Statement, is_true
from regard.worlds.shapes.words import VOCABULARY
from regard.worlds.shapes.world import LABELS, SPLITS, ShapesImage, assign_split, generate, scene_from_json, write

__all__ = [
    "COLOURS",
    "HELD_OUT",
    "KINDS",
    "LABELS",
    "SIZES",
    "SPLITS",
    "TEXTURES",
    "VOCABULARY",
    "Box",
    "Description",
    "GroundedCaption",
    "GroundedPhrase",
    "NounPhrase",
    "Scene",
    "Shape",
    "ShapesImage",
    "Statement",
    "assign_split",
    "captions",
    "false_captions",
    "generate",
    "image_satisfies",
    "is_true",
    "parse_caption",
    "recognise_scene",
    "render_scene",
    "scene_from_json",
    "write",
]
