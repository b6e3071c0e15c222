"""
Vectors of sixteen lanes for numba: LLVM turns them into the widest instructions that the CPU has.

Numba's loops vectorise only where LLVM sees a plain reduction; a block of Q4_0 is none, so the kernels spell their
vectors out.  Nothing here names an instruction set.  An address is an integer, of memory that the caller keeps alive,
and needs no alignment.  Numba caches a kernel by the date of its own file: after a change here, touch the callers and
theirs.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16
_BYTE, _HALF, _INT, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
_BYTES, _HALVES, _INTS, _FLOATS = (ir.VectorType(lane, LANES) for lane in (_BYTE, _HALF, _INT, _FLOAT))
_FMA = "llvm.fmuladd.v16f32"


class IntVector(types.Type):
    """Sixteen int32."""


class FloatVector(types.Type):
    """Sixteen float32."""


@register_model(IntVector)
class _IntVectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _INTS)


@register_model(FloatVector)
class _FloatVectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _FLOATS)


_ints, _floats = IntVector("int32x16"), FloatVector("float32x16")


def _operation(returns: Any, *arguments: Any) -> Callable[[Callable], Any]:
    """Make a function for kernels out of one that emits LLVM: (builder, *values) -> value."""

    def wrap(emit: Callable) -> Any:
        def typed(context: Any, *_: Any) -> tuple:
            return returns(*arguments), lambda context, builder, signature, values: emit(builder, *values)

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        parameters = ["typing_context", *list(inspect.signature(emit).parameters)[1:]]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        typed.__signature__ = inspect.Signature([inspect.Parameter(p, kind) for p in parameters])  # type: ignore[attr-defined]
        return intrinsic(typed)

    return wrap


def _load(builder: ir.IRBuilder, address: Any, what: ir.Type) -> Any:
    return builder.load(builder.inttoptr(address, what.as_pointer()), align=1)


def _spread(builder: ir.IRBuilder, value: Any, vector: ir.VectorType) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _same(type_: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(type_, [value] * LANES if isinstance(type_, ir.VectorType) else value)


def _call(builder: ir.IRBuilder, name: str, returns: ir.Type, *values: Any) -> Any:
    kind = ir.FunctionType(returns, [v.type for v in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _half_to_float(builder: ir.IRBuilder, half: Any, ints: ir.Type, floats: ir.Type) -> Any:
    """float16 bits -> float32 by integers, exactly, NaN and infinity too: not every CPU has an instruction."""
    bits = builder.zext(half, ints)
    magnitude = builder.shl(builder.and_(bits, _same(ints, 0x7FFF)), _same(ints, 13))
    finite = builder.fmul(builder.bitcast(magnitude, floats), _same(floats, 2.0**112))  # rebases the exponent
    special = builder.icmp_signed(">=", magnitude, _same(ints, 0x7C00 << 13))
    above = builder.or_(magnitude, _same(ints, 0x7F800000))
    value = builder.select(special, above, builder.bitcast(finite, ints))
    sign = builder.shl(builder.and_(bits, _same(ints, 0x8000)), _same(ints, 16))
    return builder.bitcast(builder.or_(value, sign), floats)


@_operation(_floats, types.intp)
def load(builder: Any, address: Any) -> Any:
    """Sixteen float32."""
    return _load(builder, address, _FLOATS)


@_operation(_floats, types.intp)
def load_spread(builder: Any, address: Any) -> Any:
    """One float32 in all lanes."""
    return _spread(builder, _load(builder, address, _FLOAT), _FLOATS)


@_operation(_floats, types.intp)
def load_halves(builder: Any, address: Any) -> Any:
    """Sixteen float16 as float32."""
    return _half_to_float(builder, _load(builder, address, _HALVES), _INTS, _FLOATS)


@_operation(types.float32, types.intp)
def load_half(builder: Any, address: Any) -> Any:
    """One float16 as a float32 number."""
    return _half_to_float(builder, _load(builder, address, _HALF), _INT, _FLOAT)


@_operation(_ints, types.intp)
def load_unsigned(builder: Any, address: Any) -> Any:
    """Sixteen uint8 as int32."""
    return builder.zext(_load(builder, address, _BYTES), _INTS)


@_operation(_floats, types.intp)
def load_signed(builder: Any, address: Any) -> Any:
    """Sixteen int8 as float32."""
    return builder.sitofp(builder.sext(_load(builder, address, _BYTES), _INTS), _FLOATS)


@_operation(types.void, types.intp, _floats)
def store(builder: Any, address: Any, vector: Any) -> Any:
    """Sixteen float32 to memory."""
    builder.store(vector, builder.inttoptr(address, _FLOATS.as_pointer()), align=4)


@_operation(_floats, types.float32)
def spread(builder: Any, value: Any) -> Any:
    """One number in all lanes."""
    return _spread(builder, value, _FLOATS)


@_operation(_floats, _ints)
def to_float(builder: Any, ints: Any) -> Any:
    """int32 -> float32."""
    return builder.sitofp(ints, _FLOATS)


@_operation(_ints, _ints)
def low_nibbles(builder: Any, ints: Any) -> Any:
    """The low four bits of each lane."""
    return builder.and_(ints, _same(_INTS, 15))


@_operation(_ints, _ints)
def high_nibbles(builder: Any, ints: Any) -> Any:
    """The bits above the low four of each lane, shifted down."""
    return builder.lshr(ints, _same(_INTS, 4))


@_operation(_floats, _floats, _floats)
def add(builder: Any, a: Any, b: Any) -> Any:
    """a + b."""
    return builder.fadd(a, b)


@_operation(_floats, _floats, _floats)
def multiply(builder: Any, a: Any, b: Any) -> Any:
    """a * b."""
    return builder.fmul(a, b)


@_operation(_floats, _floats, _floats)
def larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger of each lane; b where one is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@_operation(_floats, _floats, _floats, _floats)
def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the CPU can."""
    return _call(builder, _FMA, _FLOATS, a, b, c)


@_operation(_floats, _floats)
def exponential(builder: Any, x: Any) -> Any:
    """
    exp(x) for x <= 0 within 2e-7 of it, NaN for NaN; below -87 it stays at 1.6e-38.

        exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by its series to r^7 / 7!
    """
    x = builder.select(builder.fcmp_ordered("<", x, _same(_FLOATS, -87.0)), _same(_FLOATS, -87.0), x)
    magic = _same(_FLOATS, 1.5 * 2**23)  # adding it rounds to a whole number, in the low bits
    shifted = _call(builder, _FMA, _FLOATS, x, _same(_FLOATS, 1 / math.log(2)), magic)
    n = builder.fsub(shifted, magic)
    r = _call(builder, _FMA, _FLOATS, n, _same(_FLOATS, -0.693359375), x)  # ln 2 in two parts, the first exact
    r = _call(builder, _FMA, _FLOATS, n, _same(_FLOATS, 0.693359375 - math.log(2)), r)
    series = _same(_FLOATS, 1 / math.factorial(7))
    for i in range(6, -1, -1):
        series = _call(builder, _FMA, _FLOATS, series, r, _same(_FLOATS, 1 / math.factorial(i)))
    exponent = builder.shl(builder.add(builder.bitcast(shifted, _INTS), _same(_INTS, 127)), _same(_INTS, 23))
    return builder.fmul(series, builder.bitcast(exponent, _FLOATS))


@_operation(types.float32, _floats)
def total(builder: Any, vector: Any) -> Any:
    """The sum of the lanes, in halves: always in the same order."""
    n = LANES
    while n > 1:
        n //= 2
        nothing = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(vector, nothing, ir.Constant(ir.VectorType(_INT, n), list(range(first, first + n))))
            for first in (0, n)
        )
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.Constant(_INT, 0))


@_operation(types.void, types.intp)
def prefetch(builder: Any, address: Any) -> Any:
    """Ask for the cache line of an address."""
    flags = [ir.Constant(_INT, flag) for flag in (0, 3, 1)]  # to read, keep close, data
    pointer = builder.inttoptr(address, _BYTE.as_pointer())
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *flags)


def _transposed(builder: ir.IRBuilder, rows: list) -> list:
    """16 vectors of 16 bytes, transposed: interleaving row i with row i + 8, four times over, ends there."""
    low = ir.Constant(_INTS, [i // 2 + LANES * (i % 2) for i in range(LANES)])
    high = ir.Constant(_INTS, [8 + i // 2 + LANES * (i % 2) for i in range(LANES)])
    for _ in range(4):
        pairs = [(rows[i], rows[i + 8], half) for i in range(8) for half in (low, high)]
        rows = [builder.shuffle_vector(*pair) for pair in pairs]
    return rows


def _load_lines(builder: ir.IRBuilder, address: Any, stride: Any, first: int, n: int) -> list:
    offsets = [builder.mul(stride, ir.Constant(stride.type, i)) for i in range(first, first + n)]
    return [_load(builder, builder.add(address, offset), _BYTES) for offset in offsets]


def _store_lines(builder: ir.IRBuilder, address: Any, stride: Any, first: int, lines: list) -> None:
    for i, line in enumerate(lines):
        at = builder.add(address, builder.mul(stride, ir.Constant(stride.type, first + i)))
        builder.store(line, builder.inttoptr(at, _BYTES.as_pointer()), align=1)


@_operation(types.void, types.intp, types.intp, types.intp, types.intp)
def transpose_bytes(builder: Any, source: Any, stride: Any, target: Any, target_stride: Any) -> None:
    """Byte j of the line at source + i * stride to byte i of the line at target + j * target_stride; i, j: 0 to 15."""
    lines = _load_lines(builder, source, stride, 0, LANES)
    _store_lines(builder, target, target_stride, 0, _transposed(builder, lines))


@_operation(types.void, types.intp, types.intp, types.intp, types.intp)
def transpose_nibbles(builder: Any, source: Any, stride: Any, target: Any, target_stride: Any) -> None:
    """
    32 lines of 32 nibbles each, transposed: in every line nibble i is the low half of byte i and nibble 16 + i the
    high half.
    """
    low, high, four = _same(_BYTES, 0x0F), _same(_BYTES, 0xF0), _same(_BYTES, 4)
    first = _load_lines(builder, source, stride, 0, LANES)
    second = _load_lines(builder, source, stride, LANES, LANES)
    lows = [builder.or_(builder.and_(a, low), builder.shl(b, four)) for a, b in zip(first, second, strict=True)]
    highs = [builder.or_(builder.lshr(a, four), builder.and_(b, high)) for a, b in zip(first, second, strict=True)]
    _store_lines(builder, target, target_stride, 0, _transposed(builder, lows))
    _store_lines(builder, target, target_stride, LANES, _transposed(builder, highs))


@_operation(types.void, types.intp, types.intp)
def copy_bytes(builder: Any, source: Any, target: Any) -> None:
    """Sixteen bytes."""
    builder.store(_load(builder, source, _BYTES), builder.inttoptr(target, _BYTES.as_pointer()), align=1)


@_operation(types.void, types.intp, types.intp)
def copy_half(builder: Any, source: Any, target: Any) -> None:
    """The bits of a float16."""
    builder.store(_load(builder, source, _HALF), builder.inttoptr(target, _HALF.as_pointer()), align=1)
