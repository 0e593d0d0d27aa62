"""Exceptions that every part may raise."""


class UserError(Exception):
    """Bad input or a limit that the user can act on; `str()` is one sentence that says what to do."""


class NotEnoughMemory(UserError):
    """What is asked for needs more memory than is free; `str()` gives the numbers."""


class Cancelled(Exception):
    """The caller's `should_stop` turned true."""
