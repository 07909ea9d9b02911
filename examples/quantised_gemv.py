"""Matrix times vector with quantised weights, as language models store them (GGUF).

A block is a struct, just as it lies in the file; each format says how to read one weight of it.
"""
# ruff: noqa: N801  # the formats have their names

from typing import Annotated, Any

import numpy as np

import khaljit as kj

Array = np.ndarray[Any, Any]


@kj.struct
class Q8_0:
    """32 weights of 8 bits, one scale."""

    d: kj.f16
    qs: Annotated[kj.Array1[kj.i8], 32]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        return kj.f32(blocks[at].d) * blocks[at].qs[k]


@kj.struct
class Q4_0:
    """32 weights of 4 bits around 8, one scale."""

    d: kj.f16
    qs: Annotated[kj.Array1[kj.u8], 16]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        return kj.f32(blocks[at].d) * (kj.i32(nibble(blocks[at].qs[k % 16], k // 16)) - 8)


@kj.struct
class Q4_1:
    """32 weights of 4 bits, a scale and a least weight."""

    d: kj.f16
    m: kj.f16
    qs: Annotated[kj.Array1[kj.u8], 16]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        q = nibble(blocks[at].qs[k % 16], k // 16)
        return kj.f32(blocks[at].d) * q + kj.f32(blocks[at].m)


@kj.struct
class Q5_0:
    """32 weights of 5 bits around 16, their highest bits apart, one scale."""

    d: kj.f16
    qh: Annotated[kj.Array1[kj.u8], 4]
    qs: Annotated[kj.Array1[kj.u8], 16]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        return kj.f32(blocks[at].d) * (kj.i32(five_bits(blocks, at, k)) - 16)


@kj.struct
class Q5_1:
    """32 weights of 5 bits, their highest bits apart, a scale and a least weight."""

    d: kj.f16
    m: kj.f16
    qh: Annotated[kj.Array1[kj.u8], 4]
    qs: Annotated[kj.Array1[kj.u8], 16]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        return kj.f32(blocks[at].d) * five_bits(blocks, at, k) + kj.f32(blocks[at].m)


@kj.struct
class Q4_K:
    """256 weights of 4 bits in 8 groups, whose scales and least weights have 6 bits."""

    d: kj.f16
    dmin: kj.f16
    scales: Annotated[kj.Array1[kj.u8], 12]
    qs: Annotated[kj.Array1[kj.u8], 128]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        scale, least = six_bits(blocks, at, k // 32)
        q = nibble(blocks[at].qs[k // 64 * 32 + k % 32], k // 32 % 2)
        return kj.f32(blocks[at].d) * scale * q - kj.f32(blocks[at].dmin) * least


@kj.struct
class Q5_K:
    """256 weights of 5 bits in 8 groups, whose scales and least weights have 6 bits."""

    d: kj.f16
    dmin: kj.f16
    scales: Annotated[kj.Array1[kj.u8], 12]
    qh: Annotated[kj.Array1[kj.u8], 32]
    qs: Annotated[kj.Array1[kj.u8], 128]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        scale, least = six_bits(blocks, at, k // 32)
        high = (blocks[at].qh[k % 32] >> kj.u8(k // 32)) & 1
        q = nibble(blocks[at].qs[k // 64 * 32 + k % 32], k // 32 % 2) | (high << 4)
        return kj.f32(blocks[at].d) * scale * q - kj.f32(blocks[at].dmin) * least


@kj.struct
class Q6_K:
    """256 weights of 6 bits around 32 in 16 groups, whose scales have 8 bits."""

    ql: Annotated[kj.Array1[kj.u8], 128]
    qh: Annotated[kj.Array1[kj.u8], 64]
    scales: Annotated[kj.Array1[kj.i8], 16]
    d: kj.f16

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        half, quarter, place = k // 128, k // 32 % 4, k % 32
        low = nibble(blocks[at].ql[half * 64 + quarter % 2 * 32 + place], quarter // 2)
        high = (blocks[at].qh[half * 32 + place] >> kj.u8(quarter * 2)) & 3
        q = kj.i32(low | (high << 4)) - 32
        return kj.f32(blocks[at].d) * blocks[at].scales[k // 16] * q


@kj.struct
class Q8_K:
    """256 weights of 8 bits, one scale; sums of 16 each for products of integers."""

    d: kj.f32
    qs: Annotated[kj.Array1[kj.i8], 256]
    bsums: Annotated[kj.Array1[kj.i16], 16]

    @staticmethod
    def weight(blocks: Any, at: Any, k: Any) -> Any:
        """Weight ``k`` of a block."""
        return blocks[at].d * blocks[at].qs[k]


def nibble(byte: Any, high: Any) -> Any:
    """The lower or the higher four bits."""
    return (byte >> kj.u8(high * 4)) & 15


def five_bits(blocks: Any, at: Any, k: Any) -> Any:
    """Weight ``k`` of a block whose weights' highest bits stand apart."""
    high = (blocks[at].qh[k // 8] >> kj.u8(k % 8)) & 1
    return nibble(blocks[at].qs[k % 16], k // 16) | (high << 4)


def six_bits(blocks: Any, at: Any, group: Any) -> tuple[Any, Any]:
    """Scale and least weight of a group; of the last four their highest bits lie apart."""
    first, second = blocks[at].scales[group % 4], blocks[at].scales[group % 4 + 4]
    if group < 4:
        scale, least = first & 63, second & 63
    else:
        packed = blocks[at].scales[group + 4]
        scale = (packed & 15) | ((first >> 6) << 4)
        least = (packed >> 4) | ((second >> 6) << 4)
    return scale, least


FORMATS: dict[str, tuple[Any, int]] = {
    **{kind.__name__: (kind, 32) for kind in (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1)},
    **{kind.__name__: (kind, 256) for kind in (Q4_K, Q5_K, Q6_K, Q8_K)},
}


@kj.jit(workgroup=64)
def gemv(
    blocks: kj.Array2[Any],
    x: kj.Array1[kj.f32],
    y: kj.Array1[kj.f32],
    kind: kj.Const[Any],
    length: kj.Const[int],
) -> None:
    """A workgroup computes a row; its invocations take weights in turn."""
    row = kj.workgroup_id(0)
    total = kj.f32(0)
    for k in range(kj.local_id(0), x.size, 64):
        total += kind.weight(blocks, (row, k // length), k % length) * x[k]
    y[row] = kj.workgroup_add(total)


# The same in NumPy, many blocks at once.


def bits(bytes_: Array, count: int) -> Array:
    """The bits of some bytes, lowest first."""
    found: Array = (bytes_[..., None] >> np.arange(8)) & 1
    return found.reshape(*bytes_.shape[:-1], count)


def pairs(qs: Array, length: int) -> Array:
    """Lower halves of some bytes, then higher ones, for every ``length`` bytes."""
    groups = qs.reshape(*qs.shape[:-1], -1, length)
    both: Array = np.concatenate([groups & 15, groups >> 4], -1)
    return both.reshape(*qs.shape[:-1], -1)


def scales_of(packed: Array) -> tuple[Array, Array]:
    """Scales and least weights of 8 groups, spread over their weights."""
    a, b, c = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], -1)
    least = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], -1)
    return np.repeat(scale, 32, -1).astype(float), np.repeat(least, 32, -1).astype(float)


def dequantised(name: str, blocks: Array) -> Array:
    """The weights of blocks, in double precision."""
    d = blocks["d"].astype(float)[..., None]
    if name in ("Q8_0", "Q8_K"):
        return np.asarray(d * blocks["qs"])
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        q = pairs(blocks["qs"], 16).astype(float)
        if name.startswith("Q5"):
            q += 16 * bits(blocks["qh"], 32)
        if name.endswith("0"):
            return np.asarray(d * (q - (8 if name == "Q4_0" else 16)))
        return np.asarray(d * q + blocks["m"].astype(float)[..., None])
    if name == "Q6_K":
        ql = blocks["ql"].reshape(*blocks.shape, 2, 1, 64)
        low = np.concatenate([ql & 15, ql >> 4], -2).reshape(*blocks.shape, 2, 4, 32)
        high = blocks["qh"].reshape(*blocks.shape, 2, 1, 32) >> np.arange(0, 8, 2)[:, None] & 3
        q = (low | high << 4).reshape(*blocks.shape, 256).astype(float) - 32
        return np.asarray(d * np.repeat(blocks["scales"], 16, -1) * q)
    q = pairs(blocks["qs"], 32).astype(float)
    if name == "Q5_K":
        high = blocks["qh"][..., None, :] >> np.arange(8)[:, None] & 1
        q += 16 * high.reshape(*blocks.shape, 256)
    scale, least = scales_of(blocks["scales"])
    return np.asarray(d * scale * q - blocks["dmin"].astype(float)[..., None] * least)


def random_blocks(rng: np.random.Generator, name: str, rows: int, columns: int) -> Array:
    """Blocks of any bits, with scales that keep the weights near 1."""
    kind, length = FORMATS[name]
    dtype = np.dtype(kind)
    shape = rows, columns // length
    blocks = np.frombuffer(rng.bytes(dtype.itemsize * rows * shape[1]), dtype).reshape(shape).copy()
    for scale in ("d", "m", "dmin"):
        if scale in (dtype.names or ()):
            blocks[scale] = rng.uniform(0.5, 1, shape) / (4096 if name.endswith("K") else 64)
    return blocks


def check(name: str, rows: int, columns: int, rng: np.random.Generator) -> float:
    """The largest error of a product, by its size where that is above 1."""
    kind, length = FORMATS[name]
    blocks = random_blocks(rng, name, rows, columns)
    x, y = rng.normal(size=columns).astype(np.float32), np.zeros(rows, np.float32)
    gemv[kj.Workgroups(rows)](blocks, x, y, kind, length)
    expected = dequantised(name, blocks).reshape(rows, columns) @ x.astype(float)
    return float((np.abs(y - expected) / np.maximum(1, np.abs(expected))).max())


def main() -> None:
    """64 rows of 256 weights in every format."""
    rng = np.random.default_rng()
    for name in FORMATS:
        error = check(name, 64, 256, rng)
        print(f"{name}: largest error {error:.1e}")
        assert error < 1e-4


if __name__ == "__main__":
    main()
