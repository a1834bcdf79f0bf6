"""What settings of numbers must be, checked when they are made and not when they are used."""

from __future__ import annotations

from dataclasses import fields
from numbers import Real
from typing import Any

from ._arguments import float_of
from ._wording import with_article
from .errors import Invalid


def check_settings(settings: Any) -> None:
    """Invalid, naming it, for a field of a dataclass that is not of the type that it declares."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        wants_bool = field.type == "bool"
        if isinstance(value, bool) != wants_bool or not isinstance(value, (bool, Real)):
            name = f"{type(settings).__name__}: {field.name}"
            raise Invalid(f"{name} must be {with_article(field.type)}, not {value!r}")
        if field.type == "float":
            float_of(value, f"{type(settings).__name__}: {field.name}")
