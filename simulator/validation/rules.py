"""What each figure of a validation means, as the pages say it under their tables."""

RULES = {
    "forecast": "the profile measured once, before the grid; its interval: the profile's spreads alone, as simulate "
    "gives it",
    "with_drift": "the forecast's interval with, on top, how far the spot checks of the whole grid went from the probe "
    "(standard deviation of the logarithm about the probe, compute and reads apart); both predictions' with the runs' "
    "own noise",
    "at_state": "the same profile at the machine's state around the run: compute times and read bursts times the state "
    "of the spot checks / the probe's time of the same check; the state is the geometric mean of the checks before and "
    "after the run, smoothed over the grid's checks as far as their own noise asks for it; micro-benchmarks alone, no "
    "time of any run; its interval: the profile's spreads and, on top, what is not known of the state",
    "error": "predicted / measured - 1 of decode tokens/s, medians over a cell's runs: errors of single runs to both "
    "sides cancel in it, so those of all runs by themselves stand beside it as single runs",
    "off": "by operation, the mean over runs of |predicted - measured|, in which nothing cancels",
    "noise": "(max - min) / median of the measured tokens/s over a cell's runs",
    "run_noise": "standard error of a run's mean token time from its own tokens, about a line in each token's number "
    "of misses, with their autocorrelation; no prediction enters",
    "without_own_shape": "the kernel rows of exactly the model's own sizes left out, so that its times come from other "
    "shapes; empty where no shape lies on each side of its products and experts; other operations without a shape on "
    "each side keep their own rows, and a table names them",
    "classes": "by the measured share of decode time that waits for missing experts: compute-bound below 5 %, "
    "storage-bound above 40 %, balanced between",
    "quiet": "cells whose noise is below 5 %",
    "verdicts": "t_attention >= t_prefetch on (token, layer) pairs with a miss, in cells that read beside attention; "
    "clear: the logarithms of the measured times differ by at least 1.645 standard deviations of their own noise in "
    "that run; verdict_agreement_frac is the balanced accuracy on clear pairs",
    "ceiling": "the best balanced accuracy and the best agreement that a prediction could reach that knew, with "
    "hindsight, how long rows of the same layer and number of misses typically took in the same run, and not the luck "
    "of a single row; they take two different thresholds; rows with fewer than 8 of their kind are left out",
    "boundary": "cells whose measured median t_prefetch / t_attention lies between 0.5 and 2",
    "naive": "1 / max(a token's bytes / RAM bandwidth, FLOP / GEMV rate, bytes read / read rate); same profile, the "
    "rates of the cell's number of threads",
    "laws": "tokens/s = 1 / (a + b x), a and b >= 0 by least squares of the relative error on the cells without the "
    "value, by model class where three remain; x: miss rate, bytes read, or bytes read / read rate",
    "prediction": "the profile, the recorded routing and the share of zero gates of the run; no time of any run",
}
