"""A model in one GGUF file or in several shards, NAME-00001-of-0000N.gguf, as one header."""

import re
from pathlib import Path

from moeplan.errors import InputError
from simulator.model.imports.gguf_header import GgufHeader, read_header

SHARD_NAME = re.compile(r"^(?P<stem>.+[-._])(?P<number>\d{5})(?P<middle>[-._]of[-._])(?P<count>\d{5})\.gguf$")


def shard_paths(path: Path) -> list[Path]:
    """All shards of a split file in order, from any of them, or the file alone. Raises InputError for a missing one."""
    match = SHARD_NAME.match(path.name)
    if match is None or int(match["count"]) == 0:
        return [path]
    names = [
        f"{match['stem']}{number:05d}{match['middle']}{match['count']}.gguf"
        for number in range(1, int(match["count"]) + 1)
    ]
    paths = [path.with_name(name) for name in names]
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        must, got = f"must lie beside all {len(paths)} shards", f"{len(missing)} missing, first {missing[0]}"
        raise InputError(str(path), must, got, "fetch them too; for a spec the headers alone are enough")
    return paths


def read_split(path: Path, *, whole: bool) -> tuple[list[Path], GgufHeader]:
    """
    All files of a model, and one header: the first's keys, the tensors of all.

    whole: as of `read_header`.  Raises InputError.
    """
    paths = shard_paths(path)
    headers = [read_header(shard, index, whole=whole) for index, shard in enumerate(paths)]
    tensors = {name: tensor for header in headers for name, tensor in header.tensors.items()}
    first = headers[0]
    n_shards, n_tensors = first.value("split.count", int, 1), first.value("split.tensors.count", int, len(tensors))
    if max(n_shards, 1) != len(paths):
        advice = "keep the names NAME-00001-of-0000N.gguf"
        raise InputError(str(path), f"must be one of {n_shards} shards", f"{len(paths)} by its name", advice)
    if n_tensors != len(tensors) or len(tensors) != sum(len(header.tensors) for header in headers):
        raise InputError(str(path), f"must have {n_tensors} tensors in its shards", len(tensors), "fetch them again")
    return paths, GgufHeader(path, first.keys, tensors, first.header)


def describe_files(paths: list[Path], header: GgufHeader) -> list[str]:
    """Lines for the report of an import: how many shards there are, and how many bytes of tensors each lacks."""
    lines = [f"shards: read {len(paths)} files"] if len(paths) > 1 else []
    for index, shard in enumerate(paths):
        ends = [tensor.end for tensor in header.tensors.values() if tensor.file == index]
        missing = max(ends, default=0) - shard.stat().st_size
        if missing > 0:
            lines.append(f"weights: {shard.name} lacks {missing} bytes of its tensors; the header is enough for a spec")
    return lines
