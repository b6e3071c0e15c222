"""
The multiplications: plain numpy, the reference, and a fast path that is held equal to it.

Importing this package, which every compiled function does first, sees to it that numba has a place to keep them.
"""

import os
import tempfile
from pathlib import Path

from moeplan.errors import InputError

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
    private = Path(tempfile.gettempdir()) / f"moeplan-{os.getuid()}"
    found = next((folder for folder in (home, private) if folder.is_absolute() and _can_write(folder)), None)
    if found is None:
        raise InputError(CACHE_DIR, "must name a folder that can be written", "none", f"tried {home} and {private}")
    return found


def _can_write(folder: Path) -> bool:
    """Whether files can be made in a folder that belongs to this user and that no one else may write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            stat = folder.lstat()
    except OSError:
        return False
    return stat.st_uid == os.getuid() and not stat.st_mode & 0o022


def _keep_compiled_code() -> None:
    folder = compiled_code_folder(Path(__file__).parent)
    if folder is not None:
        os.environ[CACHE_DIR] = str(folder)
        import numba

        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


_keep_compiled_code()
