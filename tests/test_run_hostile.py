"""`moeplan run` under odd input and odd surroundings: one line, nothing lost, nothing overwritten."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forward_oracle import SMALL, random_tokens, random_weights, vocabulary
from parity.model_files import write_folder
from parity.random_models import FAMILIES, random_model

from command_line.run import check_record
from moeplan.errors import InputError
from reference_runtime import runtime as runtime_module
from reference_runtime.kernels import compiled_code_folder
from reference_runtime.loading.token_files import read_token_ids
from reference_runtime.run import Task, run
from reference_runtime.runtime import open_runtime
from reference_runtime.runtime_options import RuntimeOptions, prepare_store
from reference_runtime.sampling import nucleus_probabilities
from reference_runtime.streaming import direct_reads
from reference_runtime.streaming.expert_store import default_store_path
from reference_runtime.streaming.storage_limiter import StorageLimiter
from reference_runtime.training.export import Q8_0, write_gguf

CONFIG = replace(SMALL, n_layers=2, hidden_size=64, head_dim=32, expert_ffn_size=64, window=4096, context_length=64)
ROOT = Path(__file__).parent.parent


def no_progress(done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A small random model as Q8_0, in a folder of its own."""
    path = tmp_path / "small.gguf"
    write_gguf(random_weights(CONFIG), vocabulary(CONFIG.vocab_size), path, Q8_0)
    return path


def command(*arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    call = [sys.executable, "-m", "command_line.app", "run", "--threads", "1", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(call, capture_output=True, text=True, timeout=120, cwd=cwd, env=environment)


def is_one_line(done: subprocess.CompletedProcess, *words: str) -> bool:
    return (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and all(
        word in done.stderr for word in words
    )


# Nothing is overwritten


@pytest.mark.parametrize("name", ["small.gguf", "link", "letter.txt"])
def test_prepare_never_overwrites_another_file(gguf: Path, name: str) -> None:
    """Neither the model itself, nor by a link, nor a person's other file: only a store or an empty file is replaced."""
    gguf.with_name("letter.txt").write_text("dear reader")
    gguf.with_name("link").symlink_to(gguf)
    store = gguf.with_name(name)
    before = store.read_bytes()
    with pytest.raises(InputError, match="--store: must be a new name or an expert store"):
        prepare_store(RuntimeOptions(gguf, store=store), no_progress)
    assert store.read_bytes() == before


def test_prepare_replaces_a_damaged_or_empty_store(gguf: Path) -> None:
    """What begins as a store is one, whatever has become of the rest; an empty file holds nothing to lose."""
    options = RuntimeOptions(gguf)
    path = prepare_store(options, no_progress)
    whole = path.read_bytes()
    for damaged in (whole[:5000], b""):
        path.write_bytes(damaged)
        assert prepare_store(options, no_progress).read_bytes() == whole


def test_a_model_folder_that_cannot_be_written_asks_for_a_store(gguf: Path) -> None:
    """The shipped model lies among the installed packages: the message names the option that helps."""
    default_store_path(gguf).parent.write_text("no folder")
    with pytest.raises(
        InputError, match=r"must be a place that can be written, got .*; give another place with --store"
    ):
        prepare_store(RuntimeOptions(gguf), no_progress)


# Input that is refused before the model is loaded


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("zip.npy", b"PK\x03\x04 no archive", "must be an .npy of token ids"),
        ("header.npy", b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<i8', ((((".ljust(117) + b"\n", "must be an .npy"),
        (
            "huge.npy",
            b"\x93NUMPY\x01\x00\x76\x00"
            + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,), }".ljust(117)
            + b"\n",
            "must be an .npy of token ids",
        ),
    ],
)
def test_a_damaged_npy_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """Whatever numpy raises for it, and however much it says that it holds."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_token_ids(tmp_path / name)


def test_durations_are_no_token_ids(tmp_path: Path) -> None:
    """numpy counts timedelta64 among the integers."""
    np.save(tmp_path / "t.npy", np.array([1, 2], "m8[s]"))
    with pytest.raises(InputError, match="must be one row of whole numbers"):
        read_token_ids(tmp_path / "t.npy")


def test_ids_outside_the_vocabulary_name_their_file(gguf: Path, tmp_path: Path) -> None:
    """Also where decode would come to them late."""
    (tmp_path / "ids.json").write_text(json.dumps([1, CONFIG.vocab_size]))
    done = command("--model", gguf, "--token-ids", tmp_path / "ids.json", "--forced", "--max-tokens", 1)
    assert is_one_line(done, "ids.json: must hold ids of 0 to")


def test_a_prompt_that_is_no_text_is_refused(gguf: Path) -> None:
    """Bytes of a shell that are no UTF-8."""
    call = [sys.executable, "-m", "command_line.app", "run", "--model", gguf, "--prompt", b"\xff\xfe"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert is_one_line(done, "--prompt: must be UTF-8 text")


@pytest.mark.parametrize("n_tokens", [CONFIG.context_length + 1, 10**400])
def test_a_context_too_long_is_refused_before_loading(gguf: Path, n_tokens: int) -> None:
    """However large; nothing of the model has been read then."""
    with (
        pytest.raises(InputError, match="context: must be 1 to 64 tokens"),
        open_runtime(RuntimeOptions(gguf), n_tokens),
    ):
        pass


def test_a_cap_below_a_byte_is_no_missing_cap(gguf: Path) -> None:
    """0.4 B rounds to 0, which caps everything."""
    with pytest.raises(InputError, match="--ram-cap: must hold"), open_runtime(RuntimeOptions(gguf, 0), 8):
        pass


def test_a_model_larger_than_the_memory_asks_for_a_cap(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather one line at once than a process that the system kills."""
    monkeypatch.setattr(runtime_module, "ram_bytes", lambda: 1000)
    says = r"--ram-cap: must leave .* within the machine's 1000 B"
    with pytest.raises(InputError, match=says), open_runtime(RuntimeOptions(gguf), 8):
        pass


def test_memory_that_the_system_refuses_is_one_line() -> None:
    """mmap says ENOMEM."""
    with pytest.raises(InputError, match=r"memory: must have .* free"):
        direct_reads.page_aligned(2**60)


def test_a_record_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    """A file in a folder's place or a folder in a file's: the run would have been in vain."""
    (tmp_path / "file").write_text("")
    (tmp_path / "used" / "run.json").mkdir(parents=True)
    for folder in (tmp_path / "file" / "out", tmp_path / "used", tmp_path / "file"):
        with pytest.raises(InputError, match=str(folder) if folder.name != "file" else "--record"):
            check_record(folder)
    check_record(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()  # it is made when there is something to keep


# Numbers at the edge


def test_the_smallest_temperature_is_greedy() -> None:
    """Dividing by a subnormal number overflows: the best token is left with all the mass, and nothing is NaN."""
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    np.testing.assert_array_equal(nucleus_probabilities(logits, 1e-310, 0.95), [0, 1, 0])


def test_a_drive_slower_than_the_clock_can_tell_waits_on() -> None:
    """1e-300 bytes/s: no overflow; the wait ends when the readers close."""

    class Closing:
        waited_s: float = -1

        def wait(self, timeout: float) -> None:
            self.waited_s = timeout

    limiter, closing = StorageLimiter(1e-300), Closing()
    limiter.finish(0, limiter.due_s(0, 0.0, 2**20), closing)  # type: ignore[arg-type]
    assert 1e6 < closing.waited_s < 2**31


# Surroundings


def test_output_that_is_no_unicode_or_closed(gguf: Path) -> None:
    """An ASCII terminal gets question marks for the strips, a closed standard output nothing."""
    arguments = ("--model", gguf, "--prompt", "#$%&", "--max-tokens", 3, "--prefill-chunk", 4, "--ram-cap", "330 kB")
    done = command(*arguments, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "zero gates" in done.stdout
    call = f"{sys.executable} -m command_line.app run --model {gguf} --prompt '#' --max-tokens 3 --threads 1 >&-"
    closed = subprocess.run(call, shell=True, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_an_answer_whose_reader_has_gone_is_an_answer() -> None:
    """`| head -1`: silence and status 0, also where rich writes."""
    code = "from command_line.console import answer_console as a; c = a(); [c.print(99 * str(i)) for i in range(9999)]"
    call = f'{sys.executable} -c "{code}; raise SystemExit(7)" | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_fewer_threads_of_numba_are_the_default(gguf: Path) -> None:
    """NUMBA_NUM_THREADS below the cores limits the default and names the option where one is given."""
    call = [
        sys.executable,
        "-m",
        "command_line.app",
        "run",
        "--model",
        gguf,
        "--prompt",
        "#",
        "--max-tokens",
        "1",
        "--json",
    ]
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["conditions"]["threads"] == "1"
    many = command("--model", gguf, "--prompt", "#", "--max-tokens", 1, "--threads", 100_000)
    assert is_one_line(many, "--threads: must be 1 to")


def test_compiled_code_has_a_place_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own folder, else the user's cache, else a private folder for temporary files, else a message."""
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert compiled_code_folder(package) is None
    package = no_folder
    assert compiled_code_folder(package) == tmp_path / "cache" / "moeplan"
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_folder))
    private = compiled_code_folder(package)
    assert private is not None
    assert (private.parent, private.stat().st_mode & 0o777) == (tmp_path, 0o700)
    assert compiled_code_folder(package) == private
    private.chmod(0o777)  # anyone could put code there
    with pytest.raises(InputError, match="NUMBA_CACHE_DIR: must name a folder that can be written"):
        compiled_code_folder(package)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "anywhere")
    assert compiled_code_folder(package) is None


@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_a_model_file_that_goes_during_the_run_costs_no_result(gguf: Path, how: str) -> None:
    """The run goes on with the file that it opened; the trace then names no weights, for nobody can hash them."""
    tokens = random_tokens(8, CONFIG).tolist()

    def change(token: int) -> None:
        gguf.unlink(missing_ok=True)
        if how == "replaced":
            gguf.write_bytes(b"another model")

    with open_runtime(RuntimeOptions(gguf, n_threads=1), len(tokens)) as runtime:
        output = run(runtime, Task(tokens[:4], 4, forced=tokens[4:]), on_token=change)
    assert output.result.n_decode_tokens == 4
    assert output.trace.header.model_fingerprint == ""
    assert output.trace.n_tokens == 8


def test_the_trace_of_a_folder_names_its_first_file(tmp_path: Path) -> None:
    """A safetensors folder is named by the sha256 of its first file."""
    folder = write_folder(random_model(replace(FAMILIES["olmoe"], n_layers=2), 0), tmp_path / "folder")
    with open_runtime(RuntimeOptions(folder, n_threads=1), 4) as runtime:
        output = run(runtime, Task([1, 2], 2))
    digest = hashlib.sha256(runtime.model_file.files[0].read_bytes()).hexdigest()
    assert output.trace.header.model_fingerprint == digest


def test_the_trace_names_the_weights(gguf: Path) -> None:
    """By their sha256, where the file is the one that was run."""
    with open_runtime(RuntimeOptions(gguf, n_threads=1), 4) as runtime:
        output = run(runtime, Task([1, 2], 2))
    assert output.trace.header.model_fingerprint == runtime.fingerprint() != ""
    shutil.copy(gguf, gguf.with_name("copy"))
    os.replace(gguf.with_name("copy"), gguf)
    assert runtime.fingerprint() == ""
