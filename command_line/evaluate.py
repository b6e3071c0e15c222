"""The lines of `moeplan run --evaluate`: how well the model predicts the text, beside the speed."""

from math import isinf

from moeplan.quantity import format_bytes
from reference_runtime.quality.evaluation import Evaluation
from reference_runtime.quality.perplexity import Quality


def quality_lines(found: Evaluation) -> list[str]:
    """The model, then each masking of the LM-head predictor, then how the scoring went."""
    lines = [f"{_quality(found.quality)}; {found.quality.n_tokens} tokens of {found.text}"]
    for masked in found.lm_head_predictor:
        ruled_out = f", {masked.ruled_out_frac:.1%} of tokens ruled out" if masked.ruled_out_frac else ""
        lines.append(
            f"LM-head predictor, masked logits {masked.masked_logits}: {_quality(masked.quality)}; "
            f"{masked.exact_frac:.1%} of rows exact, best token masked on {masked.missed_frac:.1%}{ruled_out}"
        )
    if found.lm_head_predictor:
        lines.append("the speed is that of the whole LM head: the predictor is scored, not used in decode")
    taken = found.scoring_bytes
    memory = "" if taken is None else f", taking {format_bytes(taken)} beside the run's memory"
    lines.append(
        f"scored at {found.scored_tokens_per_s:.3g} tokens/s, each token with {found.n_context} before it or all there "
        f"are{memory}"
    )
    return lines


def _quality(found: Quality) -> str:
    if isinf(found.nat_per_token):
        return "infinite loss"
    error = "" if found.standard_error_nat is None else f" +- {found.standard_error_nat:.4f}"
    per_byte = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.4f} bits/byte"
    return f"{found.nat_per_token:.4f}{error} nat/token, perplexity {found.perplexity:.4g}{per_byte}"
