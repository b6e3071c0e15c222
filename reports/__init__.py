"""Reports read results and run nothing: the results' dataclasses as an HTML page or a terminal answer."""
