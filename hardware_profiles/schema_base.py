"""What every part of a hardware profile is made of: strict models, quantities with units, provenance."""

import math
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from moeplan.errors import InputError
from moeplan.quantity import Dimension, parse_quantity

Kind = Literal["measured", "datasheet", "theoretical", "assumed"]

Z_80 = 1.2815515655446004  # the standard normal's 90th percentile: the ends of an 80 % interval


class ProfileError(InputError, ValueError):
    """An InputError that pydantic catches as a ValueError, so that strict_yaml adds file, line and key."""


def quantity(dimension: Dimension) -> BeforeValidator:
    """Reads a string with a unit of this dimension; raises ProfileError for anything else."""

    def parse(raw: object) -> float:
        try:
            return parse_quantity(raw, dimension, dimension, allow_zero=dimension == "second")
        except InputError as error:
            raise ProfileError(error.where, error.must, error.got, error.advice) from error

    return BeforeValidator(parse)


def _whole(value: float) -> int:
    return round(value)


ByteSize = Annotated[int, BeforeValidator(_whole), quantity("byte"), Field(gt=0)]
ByteRate = Annotated[float, quantity("byte/second")]


MOST_UNCERTAINTY = 10.0  # a factor of 11: of such a figure nothing is known
Count = Annotated[int, Field(strict=True, ge=1, le=1024)]


# Exact counts and sizes have no uncertainty, but a source: "measured: ...", "datasheet: ...", "assumed: ...".
def _says_kind(text: str) -> str:
    if re.match(r"(measured|datasheet|theoretical|assumed): .{3}", text):
        return text
    must = "must begin with `measured: `, `datasheet: `, `theoretical: ` or `assumed: ` and say where it comes from"
    raise ProfileError("source", must, repr(text)[:40])


SourceText = Annotated[str, AfterValidator(_says_kind)]


class Frozen(BaseModel):
    """Base of all parts of a profile: unknown keys are errors, nothing changes after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Provenance(Frozen):
    """
    How far a number can be trusted.

    kind: measured on such a device, from a datasheet, theoretical (clock x width), or assumed, which includes numbers
    measured on another device; source: where it comes from or why it is assumed; uncertainty u: an 80 % chance that
    the truth lies between value / (1 + u) and value * (1 + u), that is a log-normal with sigma = ln(1 + u) / 1.28.
    """

    kind: Kind
    source: Annotated[str, Field(min_length=3)]
    uncertainty: Annotated[float, Field(ge=0, le=MOST_UNCERTAINTY, allow_inf_nan=False)]

    @model_validator(mode="before")
    @classmethod
    def _says_where_it_comes_from(cls, raw: object) -> object:
        if isinstance(raw, str | int | float):
            advice = "write {value, kind, source, uncertainty}"
            raise ProfileError("figure", "must say where it comes from", repr(raw), advice)
        return raw

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "assumed" and self.uncertainty == 0:
            raise ProfileError("uncertainty", "must be above zero for an assumed figure", 0)
        return self

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the true value."""
        return math.log1p(self.uncertainty) / Z_80
