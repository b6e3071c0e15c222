"""Times of a trace's counted tokens without walking through them: decisions as histograms, sums for any device."""
