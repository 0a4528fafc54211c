"""What the user got wrong, said in one line. Everything may import this module; it imports nothing."""


class Mistake(Exception):
    """A mistake of the user's: names the file:line or setting, the value, and the cure. The CLI prints it and exits 2."""
