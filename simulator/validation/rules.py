"""What each figure of a validation means: told in one place, at the end of its page and in its JSON."""

RULES = {
    "prediction": "from the profile, the recorded routing and the share of zero gates of the run; no time of any run "
    "enters",
    "error": "predicted / measured - 1 of decode tokens/s, above zero: predicted too fast; of medians over a cell's "
    "runs, in which errors of single runs to both sides cancel, so those stand beside it as single runs",
    "high_errors": "90th percentile of |error|, of fewer than 10 cells the largest, marked max",
    "classes": "by the measured share of decode time that waits for missing experts: compute-bound below 5 %, "
    "storage-bound above 40 %, balanced between",
    "noise": "(max - min) / median of the measured tokens/s over a cell's runs; quiet: cells below 5 %",
    "interval": "80 % interval: from the spreads in the profile alone, as simulate gives it; half-width: median of "
    "sqrt(high / low) - 1",
    "with_drift": "the 80 % interval with two spreads on top: how far the spot checks of the whole grid went from the "
    "probe (standard deviation of the logarithm about the probe, compute and reads apart), and the runs' own noise",
    "run_noise": "standard error of a run's mean token time from its own tokens, about a line in each token's number "
    "of misses, with their autocorrelation; no prediction enters",
    "naive": "1 / max(a token's bytes / RAM bandwidth, FLOP / GEMV rate, bytes read / read rate); same profile, the "
    "rates of the cell's number of threads",
    "off": "by operation, predicted less measured seconds as a share of the token's measured time; size: the mean over "
    "runs of |predicted - measured|, in which nothing cancels",
    "verdicts": "is t_attention >= t_prefetch, so that the reads are hidden? On (token, layer) pairs with a miss, in "
    "cells that read beside attention; balanced accuracy: the mean of the shares found among the hidden and among "
    "the waiting pairs; the commoner verdict: always saying what was measured more often",
    "clear": "a pair whose kind, the other rows with its layer and number of misses in that run, typically lies at "
    "least 1.645 standard deviations of the run's noise from t_attention = t_prefetch; its own times do not choose it; "
    "clear_balanced_frac is the balanced accuracy on clear pairs",
    "hindsight": "a rule that knows how long the other rows of the same layer and number of misses took in the same "
    "run, and the threshold that is best for these very pairs, one for each figure; it does not know a row's context "
    "or luck; on the same pairs as the prediction: those with 8 or more of their kind",
    "boundary": "cells that read beside attention with a measured median t_prefetch / t_attention from 0.5 to 2",
    "without_own_shape": "the kernel rows of exactly the model's own sizes left out, so that its times come from other "
    "shapes; empty where no shape lies on each side of its products and experts; other operations without a shape on "
    "each side keep their own rows",
    "laws": "tokens/s = 1 / (a + b x), a and b >= 0 by least squares of the relative error on the cells without the "
    "value, by model class where three remain; x: miss rate, or bytes read / read rate",
    "drift": "line through the runs in time order, each cell with a height of its own, so that only repeats of a cell "
    "are compared",
}


def rules(order_of_events: str) -> dict[str, str]:
    """All rules; order_of_events: when was probed and when was run."""
    return {"order": order_of_events, **RULES}
