"""The truth that predictions are compared with: a numpy runtime that executes the model and records its routing."""
