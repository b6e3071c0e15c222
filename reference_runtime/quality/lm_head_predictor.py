"""
The LM-head predictor of PowerInfer's SmallThinker engine: a low-rank guess of which vocabulary rows matter.

    score = W2 (W1 h)        W1 (rank, hidden), W2 (vocab, rank), h the normed state that the LM head reads
    a row with score > threshold gets its exact logit; the authors' engine sets every other logit to 0, not to -inf

How the authors trained theirs is not public, so `fit` is ours: the least-squares answer of that rank to "by how much
is a row's logit above the logit that only the best `active_frac` of the rows reach?"  It is linear, has no knobs beyond
these two and is exact for its question; it knows nothing of which rows come out best.
"""

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np

from moeplan.errors import InputError
from moeplan.files import atomic_path

ACTIVE_FRAC = 0.07  # what the nntrainer port documents for SmallThinker's own predictor at threshold 0
HIDDEN_PER_RANK = (
    6  # our fit then is about as good as what is documented of theirs: 7 % of rows, 13 % of the best missed
)


@dataclass(frozen=True, eq=False)
class LmHeadPredictor:
    """w1: float32 (rank, hidden); w2: float32 (vocab, rank)."""

    w1: np.ndarray
    w2: np.ndarray

    def scores(self, hidden: np.ndarray) -> np.ndarray:
        """float32 (n, vocab) from the states (n, hidden)."""
        return (hidden @ self.w1.T) @ self.w2.T

    def save(self, path: Path) -> None:
        """Write an .npz with fc1 and fc2, the authors' names, whole or not at all. Raises InputError."""
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, fc1=self.w1, fc2=self.w2)

    @staticmethod
    def load(path: Path, hidden_size: int, vocab_size: int) -> "LmHeadPredictor":
        """Read such a file for a model. Raises InputError for another file and another shape."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                w1, w2 = arrays["fc1"].astype(np.float32), arrays["fc2"].astype(np.float32)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            got = "another archive" if is_zipfile(path) else "another kind of file"
            raise InputError(str(path), "must be an .npz with fc1 and fc2", got) from error
        if w1.ndim != 2 or w1.shape[1] != hidden_size or w2.shape != (vocab_size, len(w1)):
            must = f"must be fc1 (rank, {hidden_size}) and fc2 ({vocab_size}, rank)"
            raise InputError(str(path), must, f"{w1.shape} and {w2.shape}", "it is another model's")
        return LmHeadPredictor(w1, w2)


class PredictorFit:
    """Collects states and logits, chunk by chunk, and solves; memory: hidden x (hidden + vocab) float64."""

    def __init__(self, hidden_size: int, vocab_size: int, active_frac: float = ACTIVE_FRAC) -> None:
        """Raises InputError for a share of rows that is not above 0 and below 1."""
        if not 0 < active_frac < 1:
            raise InputError("active rows", "must be a share above 0 and below 1", active_frac)
        self.n_active = max(1, round(active_frac * vocab_size))
        self._gram = np.zeros((hidden_size, hidden_size))
        self._cross = np.zeros((hidden_size, vocab_size))

    def add(self, hidden: np.ndarray, logits: np.ndarray) -> None:
        """States (n, hidden) and their exact logits (n, vocab)."""
        bar = -np.partition(-logits, self.n_active, axis=-1)[:, self.n_active, None]  # the best that stays inactive
        self._gram += hidden.T.astype(float) @ hidden
        self._cross += hidden.T.astype(float) @ (logits - bar)

    def solve(self, rank: int) -> LmHeadPredictor:
        """
        The rank-r matrix B of least |H B - T|^2: the full answer, projected on the r main directions of its output.

        Raises InputError for a rank outside 1 to hidden.
        """
        hidden_size = len(self._gram)
        if not 1 <= rank <= hidden_size:
            raise InputError("predictor rank", f"must be 1 to {hidden_size}", rank)
        ridge = 1e-6 * np.trace(self._gram) / hidden_size  # against states that fill fewer dimensions
        root = np.linalg.cholesky(self._gram + ridge * np.eye(hidden_size))  # root root.T
        answer = np.linalg.solve(root, self._cross)  # root.T B, (hidden, vocab): output in uncorrelated coordinates
        _, _, directions = np.linalg.svd(answer, full_matrices=False)  # (hidden, vocab)
        w2 = directions[:rank].T  # (vocab, rank)
        w1 = np.linalg.solve(root.T, answer @ w2).T  # (rank, hidden)
        return LmHeadPredictor(w1.astype(np.float32), w2.astype(np.float32))


class MaskedHead:
    """
    A Head (see perplexity.py) that keeps the logits whose score is above the threshold and fills the others.

    Counts what it did: n_tokens, n_active rows over all tokens, n_missed tokens whose best row was masked.
    """

    def __init__(self, predictor: LmHeadPredictor, fill: float, threshold: float = 0.0) -> None:
        """fill: 0 as the authors' engine does, or -inf."""
        self.predictor, self.fill, self.threshold = predictor, np.float32(fill), threshold
        self.n_tokens = self.n_active = self.n_missed = 0

    def __call__(self, hidden: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Logits (n, vocab) with the masked ones filled; a token with no row above keeps its best-scored one."""
        scores = self.predictor.scores(hidden)
        active = scores > self.threshold
        rows = np.arange(len(scores))
        if self.fill == -np.inf:
            active[rows, scores.argmax(axis=-1)] = True  # otherwise there might be no distribution at all
        self.n_tokens += len(scores)
        self.n_active += int(active.sum())
        self.n_missed += int((~active[rows, logits.argmax(axis=-1)]).sum())
        return np.where(active, logits, self.fill)

    @property
    def active_frac(self) -> float:
        """Mean share of the vocabulary that got exact logits."""
        return self.n_active / (self.n_tokens * len(self.predictor.w2))

    @property
    def missed_frac(self) -> float:
        """Share of tokens whose most probable token was masked."""
        return self.n_missed / self.n_tokens
