"""One sentence about a model that can't be used, whatever other libraries raise and whatever its files hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specviz.errors import Cancelled, UserError
from specviz.models.fetch import first_line

LONGEST = 80  # characters of a text out of a model's files that a sentence shows


@contextmanager
def refused_as(problem: str, remedy: str) -> Iterator[None]:
    """Whatever goes wrong inside becomes a UserError: "{problem} ({reason}), {remedy}."

    A model's files can be wrong in as many ways as there are models. UserError and Cancelled pass as they are.
    """
    try:
        yield
    except (UserError, Cancelled):
        raise
    except Exception as error:
        reason = f"no entry {first_line(error)}" if isinstance(error, KeyError) else first_line(error)
        raise UserError(f"{problem} ({reason}), {remedy}.") from error


def brief(value: object) -> str:
    """A value out of a model's files, on one line and short enough to be part of a sentence."""
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
