"""What a model is: spec, tensor types, sizes that follow from the shapes, the shipped specs, importers."""
