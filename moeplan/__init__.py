"""The ground floor: errors, quantities with units, strict YAML, atomic files. It imports no other package here."""
