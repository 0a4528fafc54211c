"""A run that only reads: a bare encoder, whose vectors are what is wanted of it."""

from regard.tasks.base import Run


class EncodeRun(Run):
    does = "reads"
