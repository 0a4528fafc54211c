"""Exceptions that end a command early. Every module may import this one; it imports nothing."""


class UserError(Exception):
    """Something the user can put right. The message names the file:line or setting, the value and the cure; the CLI exits with
    2."""


class UnsupportedModel(UserError):
    """A model of another library that is sound, as far as is known, but that none of our families can express."""


class Interrupted(BaseException):
    """A signal ended the command; a good checkpoint holds the progress so far. The CLI exits with 128 + the signal's number."""

    def __init__(self, number: int, cure: str = "nothing was written yet"):
        super().__init__(f"interrupted by signal {number}")
        self.number, self.cure = number, cure
