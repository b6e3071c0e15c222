"""
The multiplications: plain numpy, the reference, and a fast path that is held equal to it.

Importing this package, which every compiled function does first, sees to it that numba has a place to keep them.
"""

import os
import stat
import tempfile
from pathlib import Path

from moeplan.errors import InputError

# How long an idle thread of GNU OpenMP spins before it sleeps.  By default some milliseconds, in which readers wait for
# the core: the tiny model, streaming on two cores with a thread on each, decodes 20 to 21 tokens/s with 2,000 and 17 to
# 18 by default; the 4B's shape, all in RAM, 26 to 27 against 28 to 29.  Read when the library loads.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

CACHE_DIR = "NUMBA_CACHE_DIR"


def compiled_code_folder(package: Path) -> Path | None:
    """
    Where compiled code is kept when it cannot lie beside the code; None where it can or NUMBA_CACHE_DIR says.

    The user's cache folder, else one of this user's alone among the temporary files: what lies there is run.
    Raises InputError where nothing can be written.
    """
    if os.environ.get(CACHE_DIR) or _can_write(package / "__pycache__"):
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "moeplan"
    if home.is_absolute() and _can_write(home):
        return home
    private = Path(tempfile.gettempdir()) / f"moeplan-{os.getuid()}"
    if _can_write(private) and _is_private(private):
        return private
    raise InputError(CACHE_DIR, "must name a folder that can be written", "none", f"tried {home} and {private}")


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _is_private(folder: Path) -> bool:
    """Whether it is this user's own folder and no link, and no one else may write to it."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _keep_compiled_code() -> None:
    folder = compiled_code_folder(Path(__file__).parent)
    if folder is not None:
        os.environ[CACHE_DIR] = str(folder)
        import numba

        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


_keep_compiled_code()
