"""
Our forward pass against llama.cpp and transformers, on the same files: `make parity`.

Not part of `make test`, which guards the same by the golden logits that one such run left in tests/fixtures.
"""
