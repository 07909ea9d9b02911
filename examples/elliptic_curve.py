"""Multiples of a point of the elliptic curve secp256k1, ``y**2 = x**3 + 7``, modulo a prime.

Numbers of 256 bits are eight u32 limbs in registers, in a class with operators; a sum of points is
Renes, Costello and Batina's complete formula, which has no special cases.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import khaljit as kj

LIMBS = 8
FOLD = 977  # 2**256 is 2**32 + FOLD, modulo the prime
PRIME = 2**256 - 2**32 - FOLD
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
GENERATOR = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)
# Published multiples of the generator.
KNOWN = {
    1: GENERATOR,
    2: (
        0xC6047F9441ED7D6D3045406E95C07CD85C778E4B8CEF3CA7ABAC09B95C709EE5,
        0x1AE168FEA63DC339A3C58419466CEAEEF7F632653266D0E1236431A950CFE52A,
    ),
    3: (
        0xF9308A019258C31049344F85F89D5229B531C845836F99B08601F113BCE036F9,
        0x388F7B0F632DE8140FE337E62A37F3566500A99934C2231B6CB9FD7584B8E672,
    ),
    20: (
        0x4CE119C96E2FA357200B559B2F7DD5A5F02D5290AFF74B03F3E471B273211C97,
        0x12BA26DCB10EC1625DA61FA10A844C676162948271D96967450288EE9233DC3A,
    ),
    112233445566778899: (
        0xA90CC3D3F3E146DAADFC74CA1372207CB4B725AE708CEF713A98EDD73D99EF29,
        0x5A79D6B289610C68BC3B47F3D72F9788A26A06868B4D8E433E1E2AD76FB7DC76,
    ),
    ORDER - 1: (
        0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
        0xB7C52588D95C3B9AA25B0403F1EEF75702E84BB7597AABE663B82F6F04EF2777,
    ),
}


def limbs_of(number: int) -> tuple[int, ...]:
    """The limbs of a number, the least significant first."""
    return tuple(number >> (32 * k) & 0xFFFFFFFF for k in range(LIMBS))


def carried(sums: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Limbs of a number given by its sums of 64 bits, and what is carried out of them."""
    limbs: tuple[Any, ...] = ()
    carry = kj.u64(0)
    for total in kj.unroll(sums):
        carry += total
        limbs = (*limbs, kj.u32(carry))
        carry >>= 32
    return limbs, carry


@dataclass(frozen=True)
class Element:
    """A number modulo the prime."""

    limbs: tuple[Any, ...]

    @staticmethod
    def of(number: int) -> Element:
        return Element(tuple(kj.u32(limb) for limb in limbs_of(number)))

    @staticmethod
    def reduced(limbs: tuple[Any, ...], carry: Any) -> Element:
        """Of a number below twice the prime: less the prime, where adding what it lacks carries."""
        less, over = carried(
            (kj.u64(limbs[0]) + FOLD, kj.u64(limbs[1]) + 1, *map(kj.u64, limbs[2:]))
        )
        wraps = (carry != 0) | (over != 0)
        return Element(tuple(kj.select(wraps, a, b) for a, b in zip(less, limbs, strict=True)))

    def __add__(self, other: Element) -> Element:
        sums = (kj.u64(a) + b for a, b in zip(self.limbs, other.limbs, strict=True))
        return Element.reduced(*carried(tuple(sums)))

    def __neg__(self) -> Element:
        """The prime less the number; of 0 the prime, which counts as 0."""
        prime = zip(limbs_of(PRIME), self.limbs, strict=True)
        sums = tuple(kj.u64(p) + ~a for p, a in prime)
        limbs, _ = carried((sums[0] + 1, *sums[1:]))
        return Element(limbs)

    def __sub__(self, other: Element) -> Element:
        return self + -other

    def __mul__(self, other: Element) -> Element:
        """By the limbs of the other, the most significant first; what passes 2**256 is folded."""
        total: tuple[Any, ...] = (kj.u32(0),) * LIMBS
        over = kj.u64(0)
        for k in range(LIMBS - 1, -1, -1):
            moved = (kj.u32(0), *total[:-1])
            factor = kj.u64(other.limbs[k])
            limbs: tuple[Any, ...] = ()
            carry = kj.u64(0)
            for own, before in kj.unroll(zip(self.limbs, moved, strict=True)):
                carry += factor * own + before
                limbs = (*limbs, kj.u32(carry))
                carry >>= 32
            total, over = folded(limbs, carry + total[-1] + (over << 32))
        return Element.reduced(*folded(total, over))


def folded(limbs: tuple[Any, ...], over: Any) -> tuple[tuple[Any, ...], Any]:
    """A number whose limbs past 2**256 are ``over``, with those brought below."""
    low, high = over & 0xFFFFFFFF, over >> 32
    sums = (kj.u64(limbs[0]) + low * FOLD, limbs[1] + low + high * FOLD, limbs[2] + high)
    return carried((*sums, *map(kj.u64, limbs[3:])))


@dataclass(frozen=True)
class Point:
    """A point of the curve in projective coordinates."""

    x: Element
    y: Element
    z: Element

    def __add__(self, other: Point) -> Point:
        """The complete sum for curves ``y**2 = x**3 + b`` (their algorithm 7)."""
        x, y, z = self.x * other.x, self.y * other.y, self.z * other.z
        xy = (self.x + self.y) * (other.x + other.y) - (x + y)
        yz = (self.y + self.z) * (other.y + other.z) - (y + z)
        xz = (self.x + self.z) * (other.x + other.z) - (x + z)
        thrice, scaled, b = x + x + x, Element.of(21) * z, Element.of(21) * xz
        plus, minus = y + scaled, y - scaled
        return Point(xy * minus - yz * b, minus * plus + b * thrice, plus * yz + thrice * xy)


def inverse(a: Element) -> Element:
    """``a ** (PRIME - 2)``, by Fermat's little theorem."""
    exponent = kj.constant(np.array(limbs_of(PRIME - 2), np.uint32))
    power = Element.of(1)
    for bit in range(255, -1, -1):
        power = power * power
        if exponent[bit // 32] >> kj.u32(bit % 32) & 1 != 0:
            power = power * a
    return power


@kj.jit(workgroup=32)
def multiply(scalars: kj.Array2[kj.u32], points: kj.Array3[kj.u32], out: kj.Array3[kj.u32]) -> None:
    """Each row's multiple of its point: for each bit, double, then add the point or nothing."""
    i = kj.global_id(0)
    one, zero = Element.of(1), Element.of(0)
    x, y = (Element(tuple(points[i, axis, k] for k in range(LIMBS))) for axis in range(2))
    point, nothing = Point(x, y, one), Point(zero, one, zero)
    total = nothing
    for step in range(64 * LIMBS):
        bit = 32 * LIMBS - 1 - step // 2
        adds = scalars[i, bit // 32] >> kj.u32(bit % 32) & 1 != 0
        if step % 2 == 0:
            term = total
        elif adds:
            term = point
        else:
            term = nothing
        total = total + term
    scale = inverse(total.z)
    x, y = total.x * scale, total.y * scale
    for k in kj.unroll(range(LIMBS)):
        out[i, 0, k], out[i, 1, k] = x.limbs[k], y.limbs[k]


def numbers(rows: NDArray[np.uint32]) -> list[int]:
    """The numbers whose limbs stand in rows."""
    return [sum(int(limb) << (32 * k) for k, limb in enumerate(row)) for row in rows]


def main() -> None:
    """Published multiples, and two that must be the same: j (k G) and (j k) G."""
    k = random.randrange(1, ORDER)
    j = random.randrange(1, ORDER)
    scalars = [*KNOWN, k, j * k % ORDER]
    out = np.zeros((len(scalars), 2, LIMBS), np.uint32)
    generator = np.array([limbs_of(part) for part in GENERATOR], np.uint32)
    points = np.broadcast_to(generator, out.shape).copy()
    multiply[len(scalars)](np.array([*map(limbs_of, scalars)], np.uint32), points, out)
    found = [tuple(numbers(point)) for point in out]
    assert found[: len(KNOWN)] == list(KNOWN.values())
    again = np.zeros((1, 2, LIMBS), np.uint32)
    multiply[1](np.array([limbs_of(j)], np.uint32), out[-2:-1].copy(), again)
    assert tuple(numbers(again[0])) == found[-1]
    print(f"{len(KNOWN)} published multiples agree, and j (k G) is (j k) G")


if __name__ == "__main__":
    main()
