"""The multiplications: plain numpy, the reference, and a fast path that is held equal to it."""
