"""Experts on disk: the store, the reads past the page cache, the byte-capped cache."""
