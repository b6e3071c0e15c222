"""One sequence on a model: a prompt in chunks, then token by token; what it did is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from moeplan.errors import InputError
from reference_runtime.forward import NO_WATCH, OWN_ROUTER, Router, Watch, forward
from reference_runtime.kv_cache import KVCache
from reference_runtime.model import Model
from reference_runtime.sampling import Chooser

PREFILL_CHUNK_TOKENS = 512  # the micro-batch that llama.cpp takes by default; the simulator assumes the same


@dataclass(frozen=True, eq=False)
class SessionRecord:
    """Every token that was fed in, and what it caused; the first axis is the token."""

    token_ids: np.ndarray  # int32 (n,)
    expert_ids: np.ndarray  # int16 (n, n_layers, k)
    expert_weights: np.ndarray  # float32 (n, n_layers, k)
    predicted: dict[str, np.ndarray]  # int16 like expert_ids; of a post-attention model alone
    zero_gate_frac: np.ndarray  # float64 (n_chunks, n_layers)
    chunk_tokens: np.ndarray  # int (n_chunks,): tokens of each chunk, 1 in decode


class Session:
    """
    Feeds a sequence to a model.

    Nothing of the model depends on how the prompt is cut but the last bits of the sums, so runs that are to be
    compared use one chunk size.
    """

    def __init__(
        self,
        model: Model,
        capacity: int,
        *,
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
        router: Router = OWN_ROUTER,
        watch: Watch = NO_WATCH,
    ) -> None:
        """capacity: tokens that the KV cache holds. Raises InputError where the model's context is shorter."""
        if chunk_tokens < 1:
            raise InputError("--prefill-chunk", "must be at least 1 token", chunk_tokens)
        self.model, self.cache, self.chunk_tokens = model, KVCache(model.config, capacity), chunk_tokens
        self._options = {"router": router, "watch": watch}
        self._tokens: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        self._zero: list[np.ndarray] = []
        self._predicted: list[dict[str, np.ndarray]] = []

    def feed(
        self, token_ids: Sequence[int] | np.ndarray, progress: Callable[[int], object] | None = None
    ) -> np.ndarray:
        """
        The next tokens of the sequence, in chunks; the logits (vocab,) after the last of them.

        progress is called with the tokens done after each chunk. Raises InputError.
        """
        tokens = np.asarray(token_ids)
        if tokens.size == 0:
            raise InputError("tokens", "must be at least one", "none")
        for at in range(0, len(tokens), self.chunk_tokens):
            chunk = tokens[at : at + self.chunk_tokens]
            result = forward(self.model, chunk, self.cache, last_logits_only=True, **self._options)  # type: ignore[arg-type]
            self._tokens.append(np.asarray(chunk, dtype=np.int32))
            self._ids.append(result.expert_ids)
            self._weights.append(result.expert_weights)
            self._zero.append(result.zero_gate_frac)
            self._predicted.append(result.predicted)
            if progress is not None:
                progress(at + len(chunk))
        return result.logits[-1]

    def decode(
        self,
        logits: np.ndarray,
        n_tokens: int,
        choose: Chooser,
        *,
        forced: Sequence[int] | np.ndarray | None = None,
        end_id: int = -1,
        on_token: Callable[[int], object] | None = None,
    ) -> None:
        """
        n_tokens more, one by one; logits: (vocab,) after the last one fed.

        forced: these ids, whatever the model says; otherwise those that `choose` picks, fewer where end_id comes.
        on_token is called with each token before it is fed. Raises InputError.
        """
        for index in range(n_tokens):
            token = choose(logits) if forced is None else int(forced[index])
            if on_token is not None:
                on_token(token)
            if forced is None and token == end_id:
                break
            logits = self.feed([token])

    def record(self) -> SessionRecord:
        """What has been fed so far. Raises InputError when nothing was."""
        if not self._ids:
            raise InputError("session", "must have been fed", "no token")
        names, expert_ids = self._predicted[0].keys(), np.concatenate(self._ids)
        predicted = {name: np.concatenate([step[name] for step in self._predicted]) for name in names}
        if predicted:
            predicted["last-token"] = last_token_prediction(expert_ids)
        return SessionRecord(
            token_ids=np.concatenate(self._tokens),
            expert_ids=expert_ids,
            expert_weights=np.concatenate(self._weights),
            predicted=predicted,
            zero_gate_frac=np.stack(self._zero),
            chunk_tokens=np.array([len(chunk) for chunk in self._tokens]),
        )


def last_token_prediction(expert_ids: np.ndarray) -> np.ndarray:
    """
    The experts of the token before, int16 (n, n_layers, k): what a temporal prefetcher would say.

    The first token has none before it: experts 0 to k - 1 stand there.
    """
    _, n_layers, top_k = expert_ids.shape
    first = np.broadcast_to(np.arange(top_k, dtype=expert_ids.dtype), (1, n_layers, top_k))
    return np.concatenate([first, expert_ids[:-1]])
