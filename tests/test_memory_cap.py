"""The RAM cap holds: what the process grows by, from before the weights to its peak, is the cap and little more."""

import json
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from reference_runtime.process_memory import peak_rss_bytes, reset_peak, rss_bytes
from reference_runtime.synthetic_model import write_synthetic
from simulator.model.catalog import load_model_spec

CAP_BYTES = 48 * 2**20
SLACK_BYTES = 20_000_000  # what numpy, threads and the allocator may take beside the plan


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 layers x 32 experts of 442 KB: 113 MB of experts, more than twice the cap."""
    spec = load_model_spec("smallthinker-4b-a0.6b")
    assert spec.experts is not None
    experts = spec.experts.model_copy(update={"ffn_size": 512})
    attention = spec.attention.model_copy(update={"n_heads": 4, "head_dim": 128})
    update = {"hidden_size": 512, "n_layers": 8, "vocab_size": 4096, "experts": experts, "attention": attention}
    path = tmp_path_factory.mktemp("cap") / "m.gguf"
    write_synthetic(spec.model_copy(update=update), path, GGMLQuantizationType.Q4_0, seed=0)
    assert path.stat().st_size > 2 * CAP_BYTES
    return path


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak can be reset on Linux only")
@pytest.mark.parametrize("layout", ["split", "bundle"])
@pytest.mark.parametrize("chunk", [512, 16])
def test_the_peak_stays_within_the_cap(model: Path, layout: str, chunk: int) -> None:
    """Peak minus baseline is at most 1.10 x cap + 20 MB, with a prompt whose experts do not fit at once."""
    tokens = model.with_name("tokens.json")
    tokens.write_text(json.dumps([(7 * i * i + 3 * i) % 4096 for i in range(96)]))
    call = [
        sys.executable, "-m", "command_line.app", "run", "--model", str(model), "--token-ids", str(tokens), "--forced",
        "--max-tokens", "16", "--ram-cap", str(CAP_BYTES) + " B", "--layout", layout, "--prefill-chunk", str(chunk),
        "--threads", "1", "--json", "--prepare",
    ]  # fmt: skip
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["conditions"]["verdict"] == "streams"
    assert result["misses"] > 0
    grown = result["peak_rss_bytes"] - result["baseline_rss_bytes"]
    assert grown <= 1.10 * CAP_BYTES + SLACK_BYTES
    assert grown > 0.8 * CAP_BYTES  # the cap is used: a measurement that sees nothing would pass the bound


def test_peak_follows_an_allocation() -> None:
    """After a reset the peak is that of what came since."""
    if not reset_peak():
        pytest.skip("this system cannot reset the peak")
    before = rss_bytes()
    block = mmap.mmap(-1, 64 * 2**20)  # fresh pages of its own, whatever the process has freed before
    for at in range(0, len(block), 4096):
        block[at] = 1
    assert peak_rss_bytes() - before > 60 * 2**20
    block.close()
    assert reset_peak()
    assert peak_rss_bytes() - before < 32 * 2**20
