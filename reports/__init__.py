"""Reports read results and run nothing: the dataclasses of simulator.result as an HTML page or a terminal answer."""
