"""The table of published decode speeds: read strictly, described by specs and profiles that are independent of it."""

import csv
import io
import re

import pytest

from hardware_profiles.catalog import DEVICES, load_profile, profile_names
from hardware_profiles.schema import figures
from moeplan.errors import InputError
from simulator.model import size
from simulator.model.catalog import load_model_spec
from simulator.validation import public_rows as table
from simulator.validation.public_assumptions import NAMED
from simulator.validation.public_models import SPECS, row_model
from simulator.validation.public_rows import PublicRow, public_rows, read_rows

PREDICTED = [row for row in public_rows() if not row.not_predicted]
URL = re.compile(r"https?://[^\s;,)\"']+")


# the table


def test_every_row_is_described_or_says_why_not() -> None:
    """No row is dropped in silence: it has a spec, a type and a profile that exist, or a reason."""
    for row in public_rows():
        assert row.tokens_per_s > 0, row.id
        if row.not_predicted:
            assert len(row.not_predicted) > 20, row.id
        else:
            assert row_model(row.spec, row.quantisation).n_layers > 0, row.id
            assert row.profile in profile_names(), row.id
            assert set(row.assumed) <= NAMED.keys(), row.id


def edited(column: str, value: str) -> str:
    """The text of a table of one row, with one cell changed."""
    lines = list(csv.DictReader(io.StringIO(table.TABLE.read_text(encoding="utf-8"))))
    text = io.StringIO()
    writer = csv.DictWriter(text, table.HEADER)
    writer.writeheader()
    writer.writerow({**lines[0], column: value})
    return text.getvalue()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("class", "in-RAM GPU"), ("tokens_per_s", ""), ("tokens_per_s", "0"), ("tokens_per_s", "nan"),
        ("threads", "4.5"), ("threads", "four"), ("hit_rate", "-0.1"), ("source_url", "a forum"), ("spec", ""),
    ],
)  # fmt: skip
def test_a_bad_cell_is_refused_with_its_place(column: str, value: str) -> None:
    """Readers reject, never repair."""
    assert len(read_rows(edited("note", "none"), "table")) == 1
    with pytest.raises(InputError, match="table:2"):
        read_rows(edited(column, value), "table")


def test_other_columns_and_repeated_ids_are_refused() -> None:
    """A table of another shape, or one row twice, is no table."""
    text = edited("note", "none")
    with pytest.raises(InputError, match="must have the columns"):
        read_rows(text.replace("source_url", "url"), "table")
    with pytest.raises(InputError, match="stand once"):
        read_rows(text + text.splitlines()[1] + "\n", "table")
    with pytest.raises(InputError, match="cells"):
        read_rows(text.rstrip() + ",more\n", "table")


# nothing that is to be predicted enters a profile


def pages_of(text: str) -> set[str]:
    """Web pages that a text names, without scheme, anchor, query and last slash."""
    joined = re.sub(r"\n\s+", " ", text)
    return {page(url) for url in URL.findall(joined)}


def page(url: str) -> str:
    """A web page by its place alone."""
    return re.sub(r"[#?].*", "", url.split("://")[1]).rstrip("/.").lower()


def test_no_source_of_a_profile_is_the_source_of_a_row() -> None:
    """Profiles stay independent of the speeds that they are to predict: all sources of all figures, and all notes."""
    rows = {page(row.source_url) for row in public_rows()}
    for path in sorted(DEVICES.glob("*.yaml")):
        assert not pages_of(path.read_text(encoding="utf-8")) & rows, path.name
        for key, figure in figures(load_profile(str(path))):
            assert not pages_of(figure.source) & rows, f"{path.name}: {key}"


def test_a_page_is_found_however_it_is_written() -> None:
    """Anchors, queries, case, a last slash and a line break hide nothing."""
    wanted = {page(next(row for row in public_rows() if row.id == "d187").source_url)}
    place = "github.com/ikawrakow/ik_llama.cpp/discussions/164"
    for text in (
        f"see https://{place.replace('ik_', 'IK_')}#top",
        f"(https://{place}/)",
        f"read\n  http://{place}?a=1; x",
    ):
        assert pages_of(text) == wanted


# models


@pytest.mark.parametrize(
    ("name", "n_params"),
    [
        ("llama-3.1-8b", 8.03e9), ("llama-3.2-3b", 3.21e9), ("llama-2-13b", 13.02e9), ("qwen2.5-1.5b", 1.54e9),
        ("qwen2.5-3b", 3.09e9), ("qwen2.5-7b", 7.62e9), ("qwen2.5-14b", 14.77e9), ("qwen2.5-32b", 32.76e9),
    ],
)  # fmt: skip
def test_a_spec_of_the_table_has_the_parameters_that_the_vendor_states(name: str, n_params: float) -> None:
    """The shapes give the published number of parameters."""
    assert size.n_params(row_model(name, "bf16")) == pytest.approx(n_params, rel=0.005)


def test_the_names_of_the_tables_specs_are_their_own() -> None:
    """A spec is called as its file, and hides no shipped one."""
    for path in SPECS.glob("*.yaml"):
        assert row_model(path.stem, "bf16").name == path.stem
        with pytest.raises(InputError):
            load_model_spec(path.stem)


MIXED = [row for row in PREDICTED if row.file_gb and row.quantisation not in {"q4_0", "as shipped"}]


@pytest.mark.parametrize("row", MIXED, ids=lambda row: row.id)
def test_a_mix_of_types_comes_to_the_size_of_the_file(row: PublicRow) -> None:
    """The types that stand for a quantiser's mix give the size that the source states, within 8 %."""
    assert size.file_bytes(row_model(row.spec, row.quantisation)) == pytest.approx(row.file_gb * 1e9, rel=0.08)
