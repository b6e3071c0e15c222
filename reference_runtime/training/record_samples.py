"""
Record the sample traces: one per domain and one that switches domain within a request.

    python -m reference_runtime.training.record_samples MODEL.gguf CORPUS [--output traces/samples] [--decode sampled]

A domain's trace has several requests, each a prompt from held-out text as one prefill and then decode.  Decode is
teacher-forced on the same text by default: a small model's own words soon leave the domain.
"""

import argparse
from pathlib import Path

import numpy as np

import traces
from moeplan.errors import InputError
from reference_runtime.conditions import machine_conditions
from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.loading.gguf_weights import fingerprint, read_weights
from reference_runtime.loading.weight_loading import model_of
from reference_runtime.record import Request, record, trace_header
from reference_runtime.sampling import greedy, seeded
from reference_runtime.training.corpus import DOMAINS
from reference_runtime.training.evaluate import load_tokens
from traces.routing_trace import RoutingTrace
from traces.store import write_trace

# domain -> (text, licence of the text), as in reference_runtime.training.corpus
SOURCES = {
    "prose": ("An Anarchist FAQ (Debian package anarchism)", "GFDL-1.2+ / GPL-2+"),
    "code": ("Python standard library", "PSF-2.0"),
    "maths": ("statements of the Metamath set.mm (Debian package metamath-databases)", "CC0-1.0"),
    "russian": (
        "LibreOffice help and Debian handbook in Russian (Debian packages libreoffice-help-ru, debian-handbook)",
        "MPL-2.0; GPL-2+ / CC-BY-SA-3.0",
    ),
}
N_PROMPT, N_DECODE, N_REQUESTS = 128, 384, 4
SWITCH_EVERY = 48  # tokens of a domain before the next one, in the switching trace
N_SWITCHING = 2048


def domain_requests(stream: np.ndarray, n_requests: int, is_forced: bool) -> list[Request]:
    """Requests from evenly spaced places of the held-out text, all of domain 0."""
    total = N_PROMPT + N_DECODE
    starts = np.linspace(0, len(stream) - total, n_requests).astype(int)
    length = total if is_forced else N_PROMPT
    domain = np.zeros(total, dtype=np.int16)
    return [Request(stream[s : s + length].astype(np.int64), N_PROMPT, N_DECODE, domain) for s in starts]


def switching_request(streams: list[np.ndarray], n_tokens: int, switch_every: int) -> Request:
    """
    One teacher-forced request that takes the next switch_every tokens of each domain in turn.

    A domain goes on where it stopped, so its own text is whole but for the interruptions.
    """
    token = np.arange(n_tokens)
    part = token // switch_every  # which stretch
    domain = (part % len(streams)).astype(np.int16)
    place = (part // len(streams)) * switch_every + token % switch_every
    middles = [len(stream) // 2 for stream in streams]  # not the places that the domains' own traces begin at
    tokens = np.array([streams[d][middles[d] + p] for d, p in zip(domain, place, strict=True)], dtype=np.int64)
    return Request(tokens, N_PROMPT, n_tokens - N_PROMPT, domain)


def record_samples(gguf: Path, corpus: Path, is_forced: bool, seed: int) -> dict[str, RoutingTrace]:
    """File stem -> trace. Raises InputError."""
    model, digest = model_of(read_weights(gguf), PlainKernels()), fingerprint(gguf)
    streams = {domain: load_tokens(corpus, domain, "validation") for domain in DOMAINS}
    choose = greedy if is_forced else seeded(seed)
    forced = "teacher-forced on the held-out text"
    common = {
        "weights": gguf.name,
        "prefill": f"{N_PROMPT} tokens in one chunk",
        "text": "held out from training",
        "start": "empty KV cache in every request",
        "kernels": "plain numpy float32, all experts in memory",
        **machine_conditions(),
    }
    result = {}
    for name, stream in streams.items():
        source, licence = SOURCES[name]
        decode = forced if is_forced else f"sampled, temperature 0.6, top-p 0.95, seed {seed}"
        conditions = {**common, "decode": decode}
        header = trace_header(
            model.config, digest, source=source, licence=licence, domains=[name], conditions=conditions
        )
        requests = domain_requests(stream, N_REQUESTS, is_forced)
        result[f"{model.config.name}-{name}"] = record(model, requests, header, choose)
    header = trace_header(
        model.config,
        digest,
        source="; ".join(source for source, _ in SOURCES.values()),
        licence="; ".join(licence for _, licence in SOURCES.values()),
        domains=DOMAINS,
        conditions={**common, "decode": forced, "switch": f"the domain changes every {SWITCH_EVERY} tokens"},
    )
    request = switching_request(list(streams.values()), N_SWITCHING, SWITCH_EVERY)
    result[f"{model.config.name}-switching"] = record(model, [request], header)
    return result


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--output", type=Path, default=Path(traces.__file__).parent / "samples")
    parser.add_argument("--decode", choices=("forced", "sampled"), default="forced")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        for name, trace in record_samples(args.gguf, args.corpus, args.decode == "forced", args.seed).items():
            path = args.output / f"{name}.parquet"
            write_trace(trace, path)
            print(f"{path}: {trace.n_tokens} tokens, {path.stat().st_size:,} bytes", flush=True)
    except InputError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
