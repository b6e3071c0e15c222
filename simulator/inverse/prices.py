"""
Prices of parts, as a person writes them down in a small YAML file:

    schema_version: 1
    currency: EUR
    ram: {per_gib: 5}                      # every GiB above what the device leaves; or parts to choose from:
    # ram: [{ram_cap: "4 GiB", price: 20}, {ram_cap: "8 GiB", price: 45}]
    storage: [{read: "800 MB/s", price: 15}, {read: "3.5 GB/s", price: 60}]
    compute: [{factor: 1.5, price: 80}]    # CPU and RAM bandwidth together

What the device has costs nothing: a RAM cap within what it leaves to a program, its storage and its processor.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from hardware_profiles.schema_base import ByteRate, ByteSize, ProfileError
from moeplan.strict_yaml import load_model

MAX_PARTS = 50  # of one kind


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _no_text(raw: object) -> object:
    """A price is a plain number: what it counts stands in `currency`."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ProfileError("price", "must be a number", repr(raw), "the currency has a key of its own")
    return raw


Price = Annotated[float, BeforeValidator(_no_text), Field(ge=0, le=1e12, allow_inf_nan=False)]


class RamPart(_Frozen):
    """A RAM cap in bytes, and what it costs more than the device's own RAM."""

    ram_cap: ByteSize
    price: Price


class RamPerGib(_Frozen):
    """What a GiB costs above the RAM that the device leaves to a program; any size can be had."""

    per_gib: Price


class StoragePart(_Frozen):
    """A storage by its sequential read rate in bytes per second, its latencies those of the device."""

    read: ByteRate
    price: Price


class ComputePart(_Frozen):
    """A factor on CPU rates and RAM bandwidth together."""

    factor: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    price: Price


def _parts_or_rate(raw: object) -> object:
    if isinstance(raw, dict | list | tuple | RamPerGib):
        return raw
    raise ProfileError("ram", f"must be {{per_gib: PRICE}} or a list of at most {MAX_PARTS} parts", repr(raw)[:40])


def _ram_kind(raw: object) -> str:
    """Which of the two a price of RAM is, so that a complaint is about that one alone."""
    return "rate" if isinstance(raw, dict | RamPerGib) else "parts"


RamPrice = Annotated[
    Annotated[RamPerGib, Tag("rate")] | Annotated[tuple[RamPart, ...], Field(max_length=MAX_PARTS), Tag("parts")],
    Discriminator(_ram_kind),
    BeforeValidator(_parts_or_rate),
]


def _one_word(text: object) -> object:
    if isinstance(text, str) and re.fullmatch(r"[^\s<>&]{1,12}", text):
        return text
    raise ProfileError("currency", "must be one word of at most 12 characters", repr(text)[:40], "write EUR or USD")


class Prices(_Frozen):
    """A price list."""

    schema_version: Literal[1]
    currency: Annotated[str, BeforeValidator(_one_word)]
    ram: RamPrice = ()
    storage: Annotated[tuple[StoragePart, ...], Field(max_length=MAX_PARTS)] = ()
    compute: Annotated[tuple[ComputePart, ...], Field(max_length=MAX_PARTS)] = ()

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.ram or self.storage or self.compute):
            raise ProfileError("prices", "must have a price of ram, storage or compute", "none")
        return self


def load_prices(path: Path) -> Prices:
    """The price list in a YAML file. Raises InputError that names file, line and key."""
    return load_model(path, Prices)
