"""
How the passes are compiled: numba, for the types met at the first call, kept on disk for the next start.

numba keeps a function by the date of its own file.  A compiled function that is called from another file would go
stale after an edit, so each file here holds all that its kernels call.

lean and inlined functions make no arrays and are handed all that they need: without numba's count of references to
arrays (the option _nrt), whose atomic operations took three quarters of the time of Belady's pass.
"""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable) -> Any:
    """The function, compiled; where no directory for the cache can be written it is compiled anew at every start."""
    return _njit(function)


def lean(function: Callable) -> Any:
    """The same for a function that makes no arrays."""
    return _njit(function, _nrt=False)


def inlined(function: Callable) -> Any:
    """A function without arrays of its own that is compiled into each of its callers."""
    njit: Any = numba.njit
    return njit(inline="always", _nrt=False)(function)


def _njit(function: Callable, **options: bool) -> Any:
    njit: Any = numba.njit
    try:
        return njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return njit(nogil=True, **options)(function)
