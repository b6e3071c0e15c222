"""The measuring side of the validation: a list of cells, each really run, in one shuffled order."""
