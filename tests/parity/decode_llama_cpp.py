"""
Decode fixed token ids with llama.cpp and print one JSON line; a process of its own, so that it can be put in a limit.

    python -m parity.decode_llama_cpp MODEL TOKENS.json --n-prompt 16 --threads 2 [--no-repack]
"""

import argparse
import json
import time
from pathlib import Path

import llama_cpp

from parity.llama_cpp_engine import patched_defaults


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--n-prompt", type=int, default=16)
    parser.add_argument("--n-warm-up", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-repack", action="store_true")
    args = parser.parse_args()
    tokens = json.loads(args.tokens.read_text())
    with patched_defaults(None, not args.no_repack):
        llama = llama_cpp.Llama(
            model_path=str(args.model),
            n_ctx=-(-len(tokens) // 256) * 256,
            n_threads=args.threads,
            n_threads_batch=args.threads,
            flash_attn=False,
            verbose=False,
        )
    llama.eval(tokens[: args.n_prompt])
    seconds = []
    for token in tokens[args.n_prompt :]:
        began = time.perf_counter()
        llama.eval([token])
        seconds.append(time.perf_counter() - began)
    counted = seconds[args.n_warm_up :]
    print(json.dumps({"tokens_per_s": len(counted) / sum(counted), "n_counted_tokens": len(counted)}))


if __name__ == "__main__":
    main()
