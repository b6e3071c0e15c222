"""The command as a person types it: exit status, one line for wrong input, one JSON document, nothing half written."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import assert_one_line

from hardware_profiles.catalog import profile_path
from simulator.model.catalog import model_path
from traces.store import write_trace
from traces.synthetic import synthesize

BASE = ["--model", "smallthinker-4b-a0.6b", "--hardware", "raspberry-pi-5-nvme"]


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small synthetic trace of the 4B's shape."""
    path = tmp_path_factory.mktemp("traces") / "small.parquet"
    trace = synthesize(
        n_tokens=40, n_prefill=8, n_moe_layers=32, n_experts=32, top_k=4, zipf=0.8, repeat_frac=0.4, seed=1
    )
    write_trace(trace, path)
    return str(path)


def test_simulate_json_has_the_fields_of_the_contract(moeplan, trace_file: str) -> None:
    """One JSON document on standard output and nothing else there."""
    outcome = moeplan("simulate", *BASE, "--trace", trace_file, "--ram-cap", "1GiB", "--json")
    assert outcome.status == 0
    answer = json.loads(outcome.out)
    for key in ("schema_version", "verdict", "ttft_s", "bound_by", "small_print"):
        assert key in answer
    assert set(answer["tokens_per_s"]) == {"value", "low", "high"}
    cache = {"policy", "capacity_bytes", "slots", "hits", "misses", "hit_rate", "bytes_read", "bytes_wasted"}
    assert cache <= set(answer["cache"])
    layer = {"layer", "t_attention_s", "t_prefetch_s", "bubble_s", "hidden_frac", "no_miss_frac"}
    assert layer <= set(answer["layers"][0])
    assert len(answer["layers"]) == 32
    memory = {"storage_bytes", "resident_bytes", "dense_bytes", "kv_bytes", "cache_bytes", "buffer_bytes"}
    assert memory <= set(answer["memory"])


def test_an_infeasible_plan_is_an_answer(moeplan, trace_file: str) -> None:
    """A RAM cap below the dense part: exit status 0, verdict cannot_run, the reason and the arithmetic."""
    outcome = moeplan("simulate", *BASE, "--trace", trace_file, "--ram-cap", "100MiB", "--json")
    assert outcome.status == 0
    answer = json.loads(outcome.out)
    assert (answer["verdict"], answer["reason"]) == ("cannot_run", "ram_floor")
    assert "are missing" in answer["arithmetic"]
    told = moeplan("simulate", *BASE, "--trace", trace_file, "--ram-cap", "100MiB")
    assert told.status == 0
    assert "are missing" in " ".join(told.out.split())


def test_plan_writes_a_report(moeplan, trace_file: str, tmp_path: Path) -> None:
    """The page stands where it is said to stand and holds the decision."""
    report = tmp_path / "report.html"
    target = ["--target-tokens-per-s", "20", "--engine", "fast"]
    outcome = moeplan("plan", *BASE, "--trace", trace_file, "--ram-cap", "1GiB", *target, "--output", str(report))
    assert outcome.status == 0
    assert f"report: {report}" in outcome.out
    assert "tokens/s" in report.read_text(encoding="utf-8")


def test_sweep_writes_a_table_and_report_reads_it(moeplan, trace_file: str, tmp_path: Path) -> None:
    """sweep.parquet has every input beside every output; report writes the same page from the folder alone."""
    folder = tmp_path / "sweep"
    grid = ["--ram-cap", "512MiB,1GiB", "--storage-read", "0.5GB/s,2GB/s,7GB/s", "--output", str(folder)]
    outcome = moeplan("sweep", *BASE, "--trace", trace_file, *grid, "--json")
    assert outcome.status == 0
    rows = json.loads(outcome.out)["rows"]
    table = pq.read_table(folder / "sweep.parquet").to_pylist()
    assert rows == table
    assert len(rows) == 6
    again = moeplan("report", str(folder), "--output", str(tmp_path / "again.html"))
    assert again.status == 0
    assert (tmp_path / "again.html").read_bytes() == (folder / "report.html").read_bytes()


def test_a_timeline_has_every_operation(moeplan, trace_file: str, tmp_path: Path) -> None:
    """OpRecords on disk: the seconds of a token's compute ops and waits sum to the token."""
    file = tmp_path / "timeline.parquet"
    outcome = moeplan("simulate", *BASE, "--trace", trace_file, "--ram-cap", "1GiB", "--timeline", str(file), "--json")
    assert outcome.status == 0
    frame = pq.read_table(file).to_pandas()
    last = frame[(frame.token == frame.token.max()) & (frame.op != "read")]
    assert (last.end_s - last.start_s).sum() == pytest.approx(last.end_s.max() - last.start_s.min(), rel=1e-9)
    assert set(frame.op) >= {"attention", "router", "expert_ffn", "lm_head", "read", "wait"}


def test_trace_stats_json(moeplan, trace_file: str) -> None:
    """The field names of the contract."""
    answer = json.loads(moeplan("trace", "stats", trace_file, "--json").out)
    for key in ("n_tokens", "n_moe_layers", "n_experts", "top_k", "adjacent_overlap", "hit_rate_curve"):
        assert key in answer
    assert set(answer["hit_rate_curve"][0]) == {"policy", "scope", "capacity_experts", "hit_rate"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ram-cap", "1G"], ["--ram-cap", "'1G'", "GB", "GiB"]),
        (["--ram-cap", "-1GiB"], ["--ram-cap", "above zero"]),
        (["--ram-cap", "nan GiB"], ["--ram-cap", "nan GiB"]),
        (["--storage-read", "3 GB"], ["--storage-read", "GB/s"]),
        (["--storage-read", "3 Gb/s"], ["--storage-read", "bits"]),
        (["--cache", "lru-perlayer"], ["--cache", "lru-per-layer"]),
        (["--prefetch", "psychic"], ["--prefetch"]),
        (["--layout", "bundel"], ["--layout", "bundle"]),
        (["--engine", "warp"], ["--engine", "simpy or fast"]),
        (["--context", "99999999"], ["--context"]),
        (["--start", "tepid"], ["--start", "warm or cold"]),
        (["--frobnicate"], ["--frobnicate"]),
    ],
)
def test_wrong_options_get_one_line(moeplan, trace_file: str, arguments: list[str], words: list[str]) -> None:
    """where: what must hold, got what; what to do."""
    assert_one_line(moeplan("simulate", *BASE, "--trace", trace_file, *arguments), *words)


def test_unknown_names_suggest_the_nearest(moeplan, trace_file: str) -> None:
    """Of models, devices and traces."""
    model = ["--model", "smallthinker-4b", "--hardware", "raspberry-pi-5-nvme", "--trace", trace_file]
    assert_one_line(moeplan("simulate", *model), "smallthinker-4b-a0.6b")
    device = ["--model", "smallthinker-4b-a0.6b", "--hardware", "rasberry-pi-5-nvme", "--trace", trace_file]
    assert_one_line(moeplan("simulate", *device), "raspberry-pi-5-nvme")
    assert_one_line(moeplan("simulate", *BASE, "--trace", "no-such-trace"), "--trace")
    assert_one_line(moeplan("simulate", *BASE), "--trace", "must be given")


BAD_PROFILES = {
    "unknown key": (lambda text: text.replace("gemv_bandwidth:", "gemv_bandwith:"), ["gemv_bandwidth"]),
    "wrong unit": (lambda text: text.replace("MB/s", "MB"), ["MB"]),
    "empty": (lambda _: "", ["an empty file"]),
    "list": (lambda _: "- a\n- b\n", ["a list"]),
    "no YAML": (lambda _: "a: [1, 2\nb: }", ["valid YAML"]),
    "billion laughs": (
        lambda _: "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
        ["anchors, aliases"],
    ),
}


@pytest.mark.parametrize("case", sorted(BAD_PROFILES))
def test_a_bad_profile_gets_one_line_with_file_and_line(moeplan, trace_file: str, tmp_path: Path, case: str) -> None:
    """A person edits it by hand: the message says where."""
    change, words = BAD_PROFILES[case]
    file = tmp_path / "device.yaml"
    file.write_text(change(profile_path("raspberry-pi-5-nvme").read_text(encoding="utf-8")), encoding="utf-8")
    outcome = moeplan("simulate", "--model", "smallthinker-4b-a0.6b", "--hardware", str(file), "--trace", trace_file)
    assert_one_line(outcome, "device.yaml", *words)


def test_a_bad_model_file_gets_one_line(moeplan, trace_file: str, tmp_path: Path) -> None:
    """An unknown key in a model spec names its line and the nearest known key."""
    file = tmp_path / "model.yaml"
    text = model_path("smallthinker-4b-a0.6b").read_text(encoding="utf-8")
    file.write_text(text.replace("hidden_size:", "hiden_size:"), encoding="utf-8")
    outcome = moeplan("simulate", "--model", str(file), "--hardware", "raspberry-pi-5-nvme", "--trace", trace_file)
    assert_one_line(outcome, "model.yaml:", "hidden_size")


def test_a_truncated_trace_gets_one_line(moeplan, trace_file: str, tmp_path: Path) -> None:
    """Half a file is refused."""
    half = tmp_path / "half.parquet"
    data = Path(trace_file).read_bytes()
    half.write_bytes(data[: len(data) // 2])
    assert_one_line(moeplan("simulate", *BASE, "--trace", str(half)), "half.parquet", "whole Parquet file")


def test_a_trace_of_another_shape_is_refused_and_can_be_adapted(moeplan, trace_file: str) -> None:
    """By default one line that says what to do; with --adapt-trace an answer that says it is a stand-in."""
    other = ["--model", "smallthinker-21b-a3b", "--hardware", "i9-14900", "--trace", trace_file]
    assert_one_line(moeplan("simulate", *other), "52 MoE layers x 64 experts", "--adapt-trace")
    outcome = moeplan("simulate", *other, "--adapt-trace", "--ram-cap", "6GiB", "--engine", "fast", "--json")
    assert outcome.status == 0
    warnings = json.loads(outcome.out)["warnings"]
    assert any("stand-in" in warning for warning in warnings)
    assert any("adapted" in warning for warning in warnings)


def test_an_output_that_cannot_be_written_leaves_nothing(moeplan, trace_file: str, tmp_path: Path) -> None:
    """A file where a folder should be: one line, and no file is left behind."""
    (tmp_path / "file").write_text("x")
    outcome = moeplan(
        "simulate", *BASE, "--trace", trace_file, "--engine", "fast", "--output", str(tmp_path / "file" / "r.html")
    )
    assert_one_line(outcome, "r.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_synthesize_writes_a_labelled_trace(moeplan, tmp_path: Path) -> None:
    """The file can be read and calls itself synthetic."""
    file = tmp_path / "s.parquet"
    shape = ["--n-moe-layers", "3", "--n-experts", "16", "--top-k", "2", "--n-tokens", "30", "--n-prefill", "5"]
    assert moeplan("trace", "synthesize", *shape, "--output", str(file)).status == 0
    told = json.loads(moeplan("trace", "stats", str(file), "--json").out)
    assert (told["n_tokens"], told["n_decode_tokens"], told["model"]) == (30, 25, "synthetic")
    assert np.isfinite(told["adjacent_overlap"])


def test_check_sees_a_figure_that_contradicts_its_table(moeplan, tmp_path: Path) -> None:
    """`hardware check` refuses what `simulate` would refuse."""
    file = tmp_path / "mine.yaml"
    text = profile_path("ryzen-7840u").read_text(encoding="utf-8").replace("value: 6.4 GB/s", "value: 540 MB/s", 1)
    file.write_text(text, encoding="utf-8")
    assert_one_line(moeplan("hardware", "check", str(file)), "mine.yaml: storage.sequential_read", "remove it")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    """No traceback, exit status 2."""
    command = [sys.executable, "-c", "from command_line.app import main; main()", "hardware", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "moeplan: standard output: must be a place that can be written, got a full disk\n"


def test_the_lists_print(moeplan) -> None:
    """Every noun lists what is shipped."""
    for noun, name in (("hardware", "raspberry-pi-5-nvme"), ("model", "smallthinker-4b-a0.6b")):
        outcome = moeplan(noun, "list")
        assert outcome.status == 0
        assert name in outcome.out
    assert moeplan("trace", "list").status == 0
