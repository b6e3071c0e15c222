"""Recording routing traces with the reference runtime."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forward_oracle import SMALL, oracle, plain_model, random_tokens, random_weights, vocabulary

from moeplan.errors import InputError
from reference_runtime.loading.gguf_weights import fingerprint
from reference_runtime.record import Request, record, run_request, trace_header
from reference_runtime.sampling import greedy, seeded
from reference_runtime.training import record_samples
from reference_runtime.training.corpus import DOMAINS
from reference_runtime.training.export import F32, write_gguf
from traces.routing_trace import DECODE, PREFILL, TraceHeader
from traces.store import read_trace

WEIGHTS = random_weights()
MODEL = plain_model(WEIGHTS)


def header(domains: tuple[str, ...] = ("a", "b")) -> TraceHeader:
    return trace_header(SMALL, "f00", source="none", licence="none", domains=domains, conditions={})


def request(n_prompt: int, n_decode: int, forced: bool, domain: int = 0, seed: int = 1) -> Request:
    tokens = random_tokens(n_prompt + n_decode if forced else n_prompt, seed=seed)
    return Request(tokens, n_prompt, n_decode, np.full(n_prompt + n_decode, domain))


def test_trace_columns() -> None:
    """Two requests: phases, request ids, positions, domains and tokens stand where they belong."""
    trace = record(MODEL, [request(5, 3, True), request(2, 2, True, domain=1, seed=2)], header())
    assert trace.expert_ids.shape == (12, 6, 2)
    assert trace.phase.tolist() == [PREFILL] * 5 + [DECODE] * 3 + [PREFILL] * 2 + [DECODE] * 2
    assert trace.request_id.tolist() == [0] * 8 + [1] * 4
    assert trace.position.tolist() == [*range(8), *range(4)]
    assert trace.domain.tolist() == [0] * 8 + [1] * 4
    assert trace.token_id.tolist() == [*random_tokens(8), *random_tokens(4, seed=2)]
    assert (trace.header.n_experts, trace.header.layer_ids, trace.header.model) == (8, (0, 1, 2, 3, 4, 5), "small")
    np.testing.assert_allclose(trace.weights.sum(axis=2), 1, atol=2e-3)


@pytest.mark.parametrize("chunk_tokens", [512, 1, 4])
def test_forced_routing_is_the_oracles(chunk_tokens: int) -> None:
    """Teacher-forced decode routes as the oracle does on the whole text, however the prompt is cut."""
    run = run_request(MODEL, request(10, 6, True), chunk_tokens=chunk_tokens)
    np.testing.assert_array_equal(run.expert_ids, oracle(WEIGHTS, random_tokens(16))[1])


def test_sampled_decode_feeds_its_own_tokens() -> None:
    """Each decoded token is the chooser's from the logits of all before it, as the oracle has them."""
    run = run_request(MODEL, request(6, 5, False), greedy)
    logits, ids = oracle(WEIGHTS, run.token_ids)
    assert run.token_ids[6:].tolist() == [greedy(row) for row in logits[5:-1]]
    np.testing.assert_array_equal(run.expert_ids, ids)


def test_seeded_recordings_repeat() -> None:
    """The same seed gives the same trace, another seed another."""
    runs = [run_request(MODEL, request(6, 20, False), seeded(s, 1.0, 1.0)).token_ids.tolist() for s in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("n_tokens", "n_prompt", "n_decode", "n_domain"), [(3, 0, 3, 3), (4, 3, 3, 6), (6, 3, 3, 5), (3, 3, -1, 2)]
)
def test_bad_requests_are_refused(n_tokens: int, n_prompt: int, n_decode: int, n_domain: int) -> None:
    """A request has a prompt, its tokens are the prompt or everything, and each token has a domain."""
    with pytest.raises(InputError, match="request"):
        Request(np.zeros(n_tokens, int), n_prompt, n_decode, np.zeros(n_domain, int))


def test_nothing_to_record_is_refused() -> None:
    """A trace has at least one request."""
    with pytest.raises(InputError, match="must be at least one"):
        record(MODEL, [], header())


def test_switching_takes_each_domain_in_turn() -> None:
    """The domain changes every switch_every tokens and each domain's text goes on where it stopped."""
    streams = [np.arange(1000, dtype=np.uint16) + 1000 * d for d in range(3)]
    made = record_samples.switching_request(streams, 150, 20)
    assert made.domain.tolist() == [(i // 20) % 3 for i in range(150)]
    for d in range(3):
        own = made.tokens[made.domain == d]
        assert own.tolist() == list(range(1000 * d + 500, 1000 * d + 500 + len(own)))


def test_record_samples_writes_every_trace(tmp_path: Path) -> None:
    """The command writes one trace per domain and the switching one, with the fingerprint of the very file."""
    config = replace(SMALL, n_layers=1, context_length=2048, name="tiny")
    gguf = tmp_path / "tiny.gguf"
    write_gguf(random_weights(config), vocabulary(config.vocab_size), gguf, F32)
    for domain in DOMAINS:
        np.save(tmp_path / f"{domain}.validation.npy", random_tokens(3000).astype(np.uint16))
    record_samples.main([str(gguf), str(tmp_path), "--output", str(tmp_path / "out")])
    stems = sorted(path.stem for path in (tmp_path / "out").iterdir())
    assert stems == sorted(f"tiny-{name}" for name in (*DOMAINS, "switching"))
    for stem in stems:
        trace = read_trace(tmp_path / "out" / f"{stem}.parquet")
        assert trace.n_tokens == 2048
        assert trace.header.model_fingerprint == fingerprint(gguf)
        assert trace.header.licence
        assert "teacher-forced" in trace.header.conditions["decode"]
    assert np.bincount(trace.domain).tolist() == [528, 528, 512, 480]  # the last read: switching, 42 and 2/3 stretches
