"""
OpRecord: what one operation did and when; simulated and measured records are rows of one and the same type.

They are joined on (token, layer, op), so an error of the simulator can be traced to the operation that is off.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # 60 MB of memory, and a program that records must not have them while it is measured
    import pandas as pd

OPS = ("embedding", "router", "attention", "read", "wait", "dense_ffn", "expert_ffn", "lm_head")
NO_LAYER = -1  # embedding and LM head belong to no layer


class OpRecord(NamedTuple):
    """
    token: index in the trace; layer: the model's own layer index, NO_LAYER for embedding and LM head;
    op: one of OPS; start_s, end_s: seconds since the first token of the run began;
    n_bytes: bytes requested from storage (reads only, padding included); n_hits, n_misses: experts (reads only).

    "read" runs from the moment the top-k is known to the arrival of the last missing expert (t_prefetch);
    "attention" from that same moment to the moment the expert FFN could start (t_attention);
    "wait" is the bubble between the two ends, where there is one.
    """

    token: int
    layer: int
    op: str
    start_s: float
    end_s: float
    n_bytes: int = 0
    n_hits: int = 0
    n_misses: int = 0


def records_frame(records: list[OpRecord]) -> "pd.DataFrame":
    """The records as a table in the order they ended, op as a categorical."""
    import pandas as pd

    frame = pd.DataFrame(records, columns=list(OpRecord._fields))
    types = {"token": np.int32, "layer": np.int16, "n_bytes": np.int64, "n_hits": np.int32, "n_misses": np.int32}
    frame = frame.astype(types)
    frame["op"] = pd.Categorical(frame["op"], categories=OPS)
    return frame
