"""What ends a verb early: the user's mistakes, said in one line, and interruptions.

Everything may import this module; it imports nothing.
"""


class UserError(Exception):
    """A mistake of the user's: names the file:line or setting, the value, and the cure. The CLI prints it and exits 2."""


class Interrupted(BaseException):
    """A signal ended the run; what was reached is in a good checkpoint. The CLI exits with 128 + its number."""

    def __init__(self, number: int, cure: str = "nothing was written yet"):
        super().__init__(f"interrupted by signal {number}")
        self.number, self.cure = number, cure
