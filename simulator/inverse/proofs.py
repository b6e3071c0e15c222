"""
Where a search may bisect: what is proven never to be slower, at the centre and in every draw behind the intervals.

Each draw's speed then never falls, and neither do percentiles over the draws.
"""

import numpy as np

from simulator.closed_form.miss_kernels import WAKE
from simulator.inverse.speeds import Speeds
from simulator.policies import STACK_POLICIES
from simulator.prefetch import NONE
from simulator.question import Question


def more_slots_never_slower(speeds: Speeds, question: Question) -> bool:
    """Whether a larger cache is proven never to be slower, at the centre and in every draw."""
    return not doubt_of_more_slots(speeds, question)


def doubt_of_more_slots(speeds: Speeds, question: Question) -> str:
    """
    Why a larger cache may be slower, empty where it is proven never to be.

    A stack policy's larger cache holds all that a smaller one holds, so no row misses more; and what n misses cost
    must not fall with n, which is looked up for the central rates and for every draw: each draw's speed then never
    falls, and neither do percentiles over them.  Waking costs only where reads outlast attention, which more misses
    can end, as issuing them lengthens it; without prefetch every miss wakes.
    """
    if question.model.experts is None:
        return ""
    if question.cache_policy not in STACK_POLICIES:
        return f"a larger cache under {question.cache_policy} can miss more"
    tables = speeds.drawn_reads(question).tables
    if question.prefetch != NONE and tables[:, WAKE].any():
        return "the measured cost of waking after a wait can end with more misses"
    return "" if (np.diff(tables) >= 0).all() else "the measured cost of misses falls somewhere with their number"


def faster_storage_never_slower(speeds: Speeds, question: Question) -> bool:
    """
    Whether a faster storage is proven never to be slower, at the centre and in every draw: all its times fall, and
    what a wait costs falls with them, which is looked up; a limiter before it has a lag.
    """
    return question.storage_limit_bytes_per_s is None and speeds.drawn_device(question).costs_of_waits_rise


def faster_compute_never_slower(speeds: Speeds, question: Question) -> bool:
    """
    Whether faster compute is proven never to be slower, at the centre and in every draw: all its times fall, but beside
    attention it can make a row wait that did not, and waking costs more than that.
    """
    return question.prefetch == NONE or not speeds.drawn_reads(question).tables[:, WAKE].any()
