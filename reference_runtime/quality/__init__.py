"""Quality next to speed: perplexity, reduced variants, the LM-head predictor, the router mismatch."""
