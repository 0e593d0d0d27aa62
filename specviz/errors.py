"""The one exception whose text is meant for the user."""


class UserError(Exception):
    """Bad input or a limit that the user can act on; `str()` is one sentence that says what to do."""
