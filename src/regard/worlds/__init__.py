"""Embedded data sets with exact annotations: a bilingual grammar, images of shapes, algorithms."""
