"""How messages say what something is."""

from __future__ import annotations

from typing import Any


def with_article(word: str) -> str:
    """ "an int", "a dict"."""
    return f"an {word}" if word[:1].lower() in "aeio" else f"a {word}"


def a_type(value: Any) -> str:
    """The value's type, as a message calls it.

    >>> a_type(1), a_type({})
    ('an int', 'a dict')
    """
    return with_article(type(value).__name__)
