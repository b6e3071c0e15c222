"""A Figure: a number with its unit, its kind, its source and its uncertainty, one class for each dimension."""

from typing import Annotated

from pydantic import Field

from hardware_profiles.schema_base import ByteRate, Provenance, quantity


class Figure(Provenance):
    """A number in SI units and how far it can be trusted."""

    value: float


class RateFigure(Figure):
    """A Figure in bytes/s, written like '3.5 GB/s'."""

    value: ByteRate


class FlopFigure(Figure):
    """A Figure in flop/s, written like '1.2 TFLOP/s'."""

    value: Annotated[float, quantity("flop/second")]


class TimeFigure(Figure):
    """A Figure in seconds, written like '80 us'; it may be zero."""

    value: Annotated[float, quantity("second")]


class WattFigure(Figure):
    """A Figure in watts, written like '6.5 W'."""

    value: Annotated[float, quantity("watt")]


class SizeFigure(Figure):
    """A Figure in bytes, written like '16 GiB' or '64 GB'."""

    value: Annotated[float, quantity("byte")]


class FracFigure(Figure):
    """A Figure between 0 and 1 without a unit; its uncertainty is an absolute half-width."""

    value: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
