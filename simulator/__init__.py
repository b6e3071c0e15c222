"""Pure prediction: what a model is, what its steps cost on a device, and what follows for tokens per second."""
