"""Sweeps on disk: many scenarios, resumable, over local processes or a Dask cluster."""
