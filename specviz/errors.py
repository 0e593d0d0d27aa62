"""Exceptions that every part may raise."""


class UserError(Exception):
    """Bad input or a limit that the user can act on; `str()` is one sentence that says what to do."""


class Cancelled(Exception):
    """The caller's `should_stop` turned true."""
