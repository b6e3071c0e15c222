"""
Compare and print one table; exit status 1 where a row misses its limit.

    python -m parity [--only NAME ...]      with tests/ and the project on the path: see `make parity`
    python -m parity --write-golden         make the fixtures of tests/test_parity_golden.py anew
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from parity import checks_families, checks_smallthinker, checks_trained, llama_cpp_engine, transformers_engine
from parity.golden import write_golden
from parity.table import HEAD, Row, as_line

MODEL = Path(__file__).parents[2] / "reference_runtime" / "weights" / "tiny-smallthinker-q8_0.gguf"


def checks(folder: Path) -> dict[str, Callable[[], Iterator[Row]]]:
    """Name -> what it compares; the folder is for model files."""
    return {
        "exact": partial(checks_smallthinker.exact_rows, folder),
        "edge": partial(checks_smallthinker.edge_rows, folder),
        "quantised": partial(checks_smallthinker.quantised_rows, folder),
        "families": partial(checks_families.family_rows, folder),
        "tokenizer": partial(checks_trained.tokenizer_rows, MODEL, folder),
        "trained": partial(checks_trained.exact_rows, MODEL, folder),
        "trained-quantised": partial(checks_trained.quantised_rows, MODEL),
    }


def main() -> int:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(checks(Path())), metavar="NAME", help="some of the checks")
    parser.add_argument("--write-golden", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.write_golden:
            write_golden(folder)
            return 0
        print(f"{llama_cpp_engine.version()}, {transformers_engine.version()}\n\n{HEAD}", flush=True)
        n_failed = 0
        for check, rows in checks(folder).items():
            if args.only and check not in args.only:
                continue
            for row in rows():
                print(as_line(row), flush=True)
                n_failed += not row.passes
    print(f"\n{n_failed} rows FAIL" if n_failed else "\nall PASS")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
