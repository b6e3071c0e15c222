"""
The baseline that the model must beat: an interpolated trigram model of one domain.

    p(c | a b) = w0 / V + w1 p(c) + w2 p(c | b) + w3 p(c | a b)

Counts come from the domain's training tokens.  The weights w depend on a bucket of the context a b (how often it was
seen, and how many different tokens followed it) and are fitted by EM on the development tokens (Jelinek and Mercer
1980; the buckets follow Chen and Goodman, "An empirical study of smoothing techniques", 1998, section 2.3).
"""

from dataclasses import dataclass

import numpy as np

N_COMPONENTS = 4
N_COUNT_BUCKETS = 20  # powers of two of the context's count, from never
N_MEAN_BUCKETS = 16  # half powers of two of its mean count a distinct follower
PRIOR_TOKENS = 4.0  # a rare bucket leans on the weights of all buckets by so many tokens
MAX_EM_STEPS = 100
EM_TOLERANCE = 1e-6  # nat per token


@dataclass(frozen=True, eq=False)
class TrigramCounts:
    """Counts of one domain's training tokens; V is the vocabulary's size."""

    unigram: np.ndarray  # int64 (V,)
    bigram: np.ndarray  # int64 (V, V): c(b c)
    keys: np.ndarray  # int64, sorted: (a V + b) V + c of every trigram seen
    trigram: np.ndarray  # int64: its count
    followed: np.ndarray  # int64 (V * V,): c(a b .)
    n_followers: np.ndarray  # int64 (V * V,): distinct tokens after a b

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.unigram)


def count_trigrams(tokens: np.ndarray, vocab_size: int) -> TrigramCounts:
    """Count a stream of token ids, document ends being tokens like any other."""
    ids = tokens.astype(np.int64)
    pairs = ids[:-1] * vocab_size + ids[1:]
    keys, counts = np.unique(pairs[:-1] * vocab_size + ids[2:], return_counts=True)
    contexts = keys // vocab_size
    return TrigramCounts(
        unigram=np.bincount(ids, minlength=vocab_size),
        bigram=np.bincount(pairs, minlength=vocab_size**2).reshape(vocab_size, vocab_size),
        keys=keys,
        trigram=counts,
        followed=np.bincount(contexts, weights=counts, minlength=vocab_size**2).astype(np.int64),
        n_followers=np.bincount(contexts, minlength=vocab_size**2),
    )


def component_probabilities(counts: TrigramCounts, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """What each component says of c after a b: float64 (n, 4); 0 from a component that never saw the context."""
    size = counts.vocab_size
    context = a.astype(np.int64) * size + b
    key = context * size + c
    at = np.minimum(np.searchsorted(counts.keys, key), len(counts.keys) - 1)
    seen = np.where(counts.keys[at] == key, counts.trigram[at], 0)
    out = np.empty((len(key), N_COMPONENTS))
    out[:, 0] = 1 / size
    out[:, 1] = counts.unigram[c] / counts.unigram.sum()
    out[:, 2] = counts.bigram[b, c] / np.maximum(counts.bigram.sum(axis=1)[b], 1)
    out[:, 3] = seen / np.maximum(counts.followed[context], 1)
    return out


def context_buckets(counts: TrigramCounts, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The bucket of each context a b, (n,) ints below N_COUNT_BUCKETS * N_MEAN_BUCKETS."""
    context = a.astype(np.int64) * counts.vocab_size + b
    n, followers = counts.followed[context], np.maximum(counts.n_followers[context], 1)
    by_count = np.minimum(np.ceil(np.log2(n + 1)).astype(int), N_COUNT_BUCKETS - 1)
    by_mean = np.minimum((2 * np.log2(np.maximum(n / followers, 1))).astype(int), N_MEAN_BUCKETS - 1)
    return by_count * N_MEAN_BUCKETS + by_mean


def fit_weights(probabilities: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """EM for the weights of each bucket, (n_buckets, 4), rows sum to 1; an empty bucket gets those of all tokens."""
    pooled = _em(probabilities, np.zeros(len(buckets), dtype=int), 1, np.full(N_COMPONENTS, 1 / N_COMPONENTS))
    weights = _em(probabilities, buckets, N_COUNT_BUCKETS * N_MEAN_BUCKETS, pooled[0])
    weights[:N_MEAN_BUCKETS, 3] = 0  # the context was never seen: the trigram would waste its share
    return weights / weights.sum(axis=1, keepdims=True)


def _em(probabilities: np.ndarray, buckets: np.ndarray, n_buckets: int, prior: np.ndarray) -> np.ndarray:
    weights, last = np.tile(prior, (n_buckets, 1)), np.inf
    for _ in range(MAX_EM_STEPS):
        joint = weights[buckets] * probabilities  # (n, 4)
        total = joint.sum(axis=1)  # (n,)
        loss = -np.log(total).mean()
        if last - loss < EM_TOLERANCE:
            break
        last = loss
        expected = [np.bincount(buckets, weights=joint[:, j] / total, minlength=n_buckets) for j in range(N_COMPONENTS)]
        weights = np.stack(expected, axis=1) + PRIOR_TOKENS * prior
        weights /= weights.sum(axis=1, keepdims=True)
    return weights


@dataclass(frozen=True, eq=False)
class Trigram:
    """A fitted baseline."""

    counts: TrigramCounts
    weights: np.ndarray  # (n_buckets, 4)

    def probabilities(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """p(c | a b), float64 (n,); sums to 1 over c wherever b was ever followed by anything."""
        weights = self.weights[context_buckets(self.counts, a, b)]
        return (weights * component_probabilities(self.counts, a, b, c)).sum(axis=1)

    def losses(self, stream: np.ndarray, at: np.ndarray) -> np.ndarray:
        """-ln p of the tokens at the places `at` >= 2 of a stream, given the two before each: nat, float64 (n,)."""
        ids = stream.astype(np.int64)
        return -np.log(self.probabilities(ids[at - 2], ids[at - 1], ids[at]))


def fit_trigram(train: np.ndarray, development: np.ndarray, vocab_size: int) -> Trigram:
    """Count the training tokens and fit the weights on the development tokens."""
    counts = count_trigrams(train, vocab_size)
    ids = development.astype(np.int64)
    a, b, c = ids[:-2], ids[1:-1], ids[2:]
    return Trigram(counts, fit_weights(component_probabilities(counts, a, b, c), context_buckets(counts, a, b)))
