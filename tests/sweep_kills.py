"""
Kill a sweep again and again at random moments and check that its folder only ever gets better.

    python tests/sweep_kills.py 50 [seed]        one line a round; stops at the first fault
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from traces.store import write_trace
from traces.synthetic import synthesize

N_CONTEXTS = 26  # chunks of the sweep below
ROWS_PER_CHUNK = 3 * 2 * 3  # RAM caps, threads, storage speeds
PATIENCE_S = 120.0


def small_trace(path: Path) -> Path:
    """40 tokens of the 4B's shape."""
    shape = {"n_moe_layers": 32, "n_experts": 32, "top_k": 4}
    write_trace(synthesize(n_tokens=40, n_prefill=8, **shape, zipf=0.8, repeat_frac=0.4, seed=1), path)
    return path


def command(trace: Path, folder: Path, *more: str) -> list[str]:
    """A sweep of N_CONTEXTS chunks with a scenario that fails and one that cannot run in each."""
    return [
        *(sys.executable, "-m", "command_line.app", "sweep", "--model", "smallthinker-4b-a0.6b"),
        *("--hardware", "raspberry-pi-5-nvme", "--trace", str(trace), "--ram-cap", "128MiB,1GiB,own"),
        *("--storage-read", "0.5GB/s..4GB/s:3", "--threads", "own,3", "--output", str(folder)),
        *("--context", ",".join(str(256 * index) for index in range(1, N_CONTEXTS + 1)), "--no-report", *more),
    ]


def finish(arguments: list[str]) -> None:
    """Run a sweep to its end."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def parts(folder: Path) -> dict[str, tuple[int, int]]:
    """The parts on disk: name to inode and time of writing, which a part that is never written again keeps."""
    found = {}
    for path in sorted((folder / "parts").glob("*.parquet")):
        try:
            status = path.stat()
        except FileNotFoundError:  # the sweep is tidying up, its table is there
            continue
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def kill_once(arguments: list[str], folder: Path, rng: random.Random) -> int:
    """
    Start the sweep, kill it when some more parts are there, and check what it left; the number of parts.

    Every part can be read, those from before are the same files, and the table is there only when it is whole.
    """
    before = parts(folder)
    wanted = len(before) + rng.randint(0, 4)
    running = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE_S
    while running.poll() is None and len(parts(folder)) < wanted:
        assert time.monotonic() < end, "the sweep stands still"
        time.sleep(0.002)
    time.sleep(rng.random() * 0.05)
    running.kill()
    running.wait()
    if (folder / "sweep.parquet").exists():
        assert pq.read_table(folder / "sweep.parquet").num_rows == N_CONTEXTS * ROWS_PER_CHUNK
        return N_CONTEXTS
    after = parts(folder)
    for name, identity in before.items():
        assert after[name] == identity, f"{name} was computed twice"
    for name in after:
        assert pq.read_table(folder / "parts" / name).num_rows == ROWS_PER_CHUNK
    return len(after)


def main(n_kills: int, seed: int = 0) -> None:
    """Kill n_kills times, over as many sweeps as that takes; each one's table is that of a sweep left in peace."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        trace = small_trace(Path(place) / "trace.parquet")
        finish(command(trace, Path(place) / "peace", "--workers", "1"))
        wanted = (Path(place) / "peace" / "sweep.parquet").read_bytes()
        n_done = n_sweeps = 0
        while n_done < n_kills:
            folder, n_parts = Path(place) / f"sweep-{n_sweeps}", 0
            while n_done < n_kills and n_parts < N_CONTEXTS:
                n_parts = kill_once(command(trace, folder, "--workers", str(rng.randint(1, 2))), folder, rng)
                n_done += 1
                print(f"kill {n_done} of {n_kills}: sweep {n_sweeps} has {n_parts} of {N_CONTEXTS} parts", flush=True)
            finish(command(trace, folder, "--workers", "1"))
            assert (folder / "sweep.parquet").read_bytes() == wanted
            assert not (folder / "parts").exists()
            n_sweeps += 1
    print(f"{n_kills} kills over {n_sweeps} sweeps: nothing lost, nothing computed twice, every table the same bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
