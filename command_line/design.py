"""`moeplan design`: how large may the experts of a hypothetical model be, so that this device reads them in time?"""

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.answers import (
    Context,
    Hardware,
    Json,
    Prefetch,
    RamCap,
    ReportFile,
    Seed,
    StorageRead,
    check_outputs,
    say_where,
)
from command_line.console import answer_console
from command_line.progress import step_bar
from moeplan.errors import InputError
from moeplan.quantity import parse_quantity

if TYPE_CHECKING:
    from simulator.inverse.design import Routing

MEASURED_ON = "tiny-smallthinker-prose"  # the shipped trace whose locality is taken where nothing is said
COUNT = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMB]?)", re.IGNORECASE)
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}
MAX_VALUES = 64  # of one list

Params = Annotated[
    str | None, typer.Option("--params", metavar="N", help="Parameters in all, the same for each shape, e.g. 4B.")
]
Active = Annotated[
    str | None,
    typer.Option("--active", metavar="A", help="Parameters of one token, the same for each shape, e.g. 0.6B."),
]
Like = Annotated[
    str, typer.Option("--like", metavar="M", help="The model whose layers, attention and vocabulary it has.")
]
Counts = Annotated[str | None, typer.Option("--n-experts", metavar="N,...", help="Experts a layer; where free.")]
TopKs = Annotated[str | None, typer.Option("--top-k", metavar="N,...", help="Experts a token and layer; where free.")]
Widths = Annotated[
    str | None, typer.Option("--ffn-size", metavar="N,...", help="Widths of an expert, multiples of 32; where free.")
]
Quantisation = Annotated[
    str | None,
    typer.Option("--quantisation", metavar="TYPE", help="Type of the big matrices; default: as --like has."),
]
RouterOption = Annotated[
    str | None, typer.Option("--router", help="pre-attention or post-attention; default: as --like has.")
]
DesignTrace = Annotated[
    str | None,
    typer.Option("--trace", metavar="T", help="Replayed where its shape fits; its locality is taken elsewhere."),
]
Zipf = Annotated[float | None, typer.Option("--zipf", min=0, max=99, help="Skew of the made-up routing's popularity.")]
Repeat = Annotated[
    float | None, typer.Option("--repeat", min=0, max=1, help="Chance that it keeps the last token's expert.")
]


def design(
    hardware: Hardware, params: Params = None, active: Active = None, like: Like = "smallthinker-4b-a0.6b",
    n_experts: Counts = None, top_k: TopKs = None, ffn_size: Widths = None, quantisation: Quantisation = None,
    router: RouterOption = None, ram_cap: RamCap = None, storage_read: StorageRead = None, context: Context = None,
    prefetch: Prefetch = None,
    trace: DesignTrace = None, zipf: Zipf = None, repeat: Repeat = None,
    holds: Annotated[
        float | None, typer.Option("--holds", help="Share of the cases with a miss from which it holds; default: 0.9.")
    ] = None,
    target_tokens_per_s: Annotated[
        float | None, typer.Option("--target-tokens-per-s", help="A speed wished for besides.")
    ] = None,
    seed: Seed = 0,
    output: ReportFile = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Design for a device: where does t_attention >= t_prefetch begin to hold among shapes of experts?"""
    check_outputs((output, ".html"))
    from hardware_profiles.catalog import load_profile
    from simulator.inverse import design as designing
    from simulator.inverse.shapes import Wish, with_router
    from simulator.model.catalog import load_model_spec
    from simulator.model.spec import with_quantisation
    from simulator.model.tensor_types import check_type
    from simulator.question import Question

    spec = load_model_spec(like, "--like")
    if quantisation is not None:
        check_type(quantisation, "--quantisation")
        spec = with_quantisation(spec, quantisation)
    if router is not None:
        spec = with_router(spec, router)
    wish = Wish(
        spec, _count(params, "--params"), _count(active, "--active"), _counts(n_experts, "--n-experts"),
        _counts(top_k, "--top-k"), _widths(ffn_size),
    )  # fmt: skip
    question = Question(
        model=spec,
        profile=load_profile(hardware),
        ram_cap_bytes=None if ram_cap is None else round(parse_quantity(ram_cap, "byte", "--ram-cap")),
        storage_read_bytes_per_s=None
        if storage_read is None
        else parse_quantity(storage_read, "byte/second", "--storage-read"),
        prefetch_policy=prefetch,
        context=context,
    )
    routing = _routing(trace, zipf, repeat)
    holds_frac = designing.HOLDS_FRAC if holds is None else holds
    with step_bar("simulating designs") as on_progress:
        answer = designing.design(
            wish, question, routing, holds_frac=holds_frac, target_tokens_per_s=target_tokens_per_s, seed=seed,
            on_progress=on_progress,
        )  # fmt: skip
    if output is not None:
        from reports.html import write_design_report

        write_design_report(answer, output)
    if as_json:
        print(json.dumps(answer.as_json(), indent=1))
        return
    from reports.design_terminal import render_design

    render_design(answer, answer_console())
    say_where(output)


def _routing(trace: str | None, zipf: float | None, repeat: float | None) -> "Routing":
    """A trace's rows where they fit, and its locality; or the locality that was asked for, or a shipped trace's."""
    from simulator.inverse.design import Routing
    from simulator.inverse.routing import Locality, locality_of
    from traces.catalog import load_trace

    recorded = load_trace(MEASURED_ON if trace is None else trace)
    locality = locality_of(recorded)
    if zipf is not None or repeat is not None:
        chosen = (locality.zipf if zipf is None else zipf, locality.repeat_frac if repeat is None else repeat)
        locality = Locality(*chosen, "asked for")
    return Routing(None if trace is None else recorded, locality)


def _count(text: str | None, where: str) -> float | None:
    """A number of parameters: '4B', '600M', '630000000'."""
    if text is None:
        return None
    found = COUNT.fullmatch(text.strip())
    value = float(found["number"]) * UNITS[found["unit"].upper()] if found else 0.0
    if not 1e3 <= value <= 1e15:
        raise InputError(where, "must be a number of parameters like 4B or 600M", repr(text))
    return value


def _counts(text: str | None, where: str) -> tuple[int, ...]:
    """Whole numbers above zero, separated by commas; each once."""
    if text is None:
        return ()
    items = [item.strip() for item in text.split(",")]
    if not all(re.fullmatch(r"\d{1,6}", item) and int(item) > 0 for item in items) or len(items) > MAX_VALUES:
        raise InputError(where, f"must be at most {MAX_VALUES} whole numbers above zero, like 2,4,8", repr(text))
    return tuple(dict.fromkeys(int(item) for item in items))


def _widths(text: str | None) -> tuple[int, ...]:
    from simulator.inverse.shapes import FFN_MULTIPLE

    widths = _counts(text, "--ffn-size")
    wrong = next((width for width in widths if width % FFN_MULTIPLE), None)
    if wrong is not None:
        raise InputError("--ffn-size", f"must be multiples of {FFN_MULTIPLE}, a block of a quantised type", wrong)
    return widths
