"""A world of shapes: small pictures, true and false captions, the box of every noun phrase, labels; all of it known.

A picture is a pure function of the seed; its shapes alone decide whether it belongs to train, valid or test. Eight of the 48
combinations of colour and kind are in none of these, neither in pictures nor in captions, and in every picture and caption of
the split "composition".
"""

from regard.worlds.shapes.caption import Caption, Named, captions
from regard.worlds.shapes.false_captions import false_captions
from regard.worlds.shapes.parse import parse
from regard.worlds.shapes.recognise import recognise, shows
from regard.worlds.shapes.render import draw
from regard.worlds.shapes.scene import COLOURS, HELD_OUT, KINDS, SIZES, TEXTURES, Box, Scene, Shape
from regard.worlds.shapes.statement import Description, Phrase, Statement, true_of
from regard.worlds.shapes.words import VOCABULARY
from regard.worlds.shapes.world import LABELS, SPLITS, Picture, generate, scene_of, split_of, write

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
    "Caption",
    "Description",
    "Named",
    "Phrase",
    "Picture",
    "Scene",
    "Shape",
    "Statement",
    "captions",
    "draw",
    "false_captions",
    "generate",
    "parse",
    "recognise",
    "scene_of",
    "shows",
    "split_of",
    "true_of",
    "write",
]
