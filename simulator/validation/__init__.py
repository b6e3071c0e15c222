"""Predictions held against measurements: cells of a grid that was run here, and rows that others published."""
