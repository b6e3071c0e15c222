"""Shipped files by name: devices, models and traces are given as a shipped name or as a path."""

import os
from dataclasses import dataclass
from pathlib import Path

from moeplan.errors import InputError, nearest


@dataclass(frozen=True)
class Shipped:
    """The files of one folder and suffix; option and noun are what a complaint calls them."""

    folder: Path
    suffix: str
    option: str
    noun: str

    def names(self) -> list[str]:
        """Names without the suffix, sorted."""
        return sorted(path.stem for path in self.folder.glob(f"*{self.suffix}"))

    def path(self, name_or_path: str) -> Path:
        """The file of a shipped name or of a path. Raises InputError for neither, with the nearest name."""
        if name_or_path in self.names():
            return self.folder / f"{name_or_path}{self.suffix}"
        if os.path.exists(name_or_path):  # unlike Path.exists it also takes a name that is too long
            return Path(name_or_path)
        raise InputError(self.option, f"must be {self.noun}", repr(name_or_path), nearest(name_or_path, self.names()))
