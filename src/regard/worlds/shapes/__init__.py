"""A world of shapes: small images with true and false captions, the boxes of every noun phrase, and labels, all known exactly.

An image is a pure function of the seed; its shapes alone determine whether it belongs to train, valid or test. Eight of the 48
combinations of colour and kind occur in none of these, neither in images nor in captions, but in every image and caption of the
split "composition".
"""

from regard.worlds.shapes.caption import VOCABULARY, GroundedCaption, GroundedPhrase, false_captions, sample_captions
from regard.worlds.shapes.parse import parse_caption
from regard.worlds.shapes.recognise import image_satisfies, recognise_scene
from regard.worlds.shapes.render import render_scene
from regard.worlds.shapes.scene import COLOURS, HELD_OUT, KINDS, SIZES, TEXTURES, Box, Scene, Shape
from regard.worlds.shapes.statement import Description, NounPhrase, Statement, is_true
from regard.worlds.shapes.world import LABELS, SPLITS, ShapesImage, assign_split, generate, write

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
    "false_captions",
    "generate",
    "image_satisfies",
    "is_true",
    "parse_caption",
    "recognise_scene",
    "render_scene",
    "sample_captions",
    "write",
]
