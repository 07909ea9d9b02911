"""Modular arithmetic on 256-bit integers, eight u32 limbs each: (a * b + c) mod p.

Products are split by `kj.mulhi`; the remainder is taken bit by bit, which is slow and plain.
"""

import random
from typing import Any

import numpy as np

import khaljit as kj

LIMBS = 8
P = 2**256 - 2**32 - 977  # the prime of secp256k1


def less(a: Any, b: Any) -> Any:
    """Whether ``a < b``, the most significant limbs deciding."""
    for k in range(LIMBS, -1, -1):
        if a[k] != b[k]:
            return a[k] < b[k]
    return False


@kj.jit
def multiply_add(
    a: kj.Array2[kj.u32],
    b: kj.Array2[kj.u32],
    c: kj.Array2[kj.u32],
    p: kj.Array1[kj.u32],
    out: kj.Array2[kj.u32],
) -> None:
    """``out = (a * b + c) mod p`` for every row, little-endian limbs."""
    i = kj.global_id(0)
    if i >= out.shape[0]:
        return
    product = kj.local(kj.u32, 2 * LIMBS)
    for k in range(2 * LIMBS):
        product[k] = c[i, k] if k < LIMBS else 0
    for j in range(LIMBS):
        carry = kj.u32(0)
        for k in range(LIMBS):
            low = a[i, j] * b[i, k]
            high = kj.mulhi(a[i, j], b[i, k])
            first = product[j + k] + low
            high += kj.u32(first < low)
            second = first + carry
            high += kj.u32(second < carry)
            product[j + k] = second
            carry = high
        k = j + LIMBS
        while carry != 0 and k < 2 * LIMBS:
            total = product[k] + carry
            carry = kj.u32(total < carry)
            product[k] = total
            k += 1
    # The remainder: shift in a bit at a time, subtract the modulus where it fits.
    rest = kj.local(kj.u32, LIMBS + 1)
    modulus = kj.local(kj.u32, LIMBS + 1)
    for k in range(LIMBS + 1):
        rest[k] = 0
        modulus[k] = p[k] if k < LIMBS else 0
    for bit in range(64 * LIMBS - 1, -1, -1):
        for k in range(LIMBS, 0, -1):
            rest[k] = (rest[k] << 1) | (rest[k - 1] >> 31)
        rest[0] = (rest[0] << 1) | ((product[bit // 32] >> kj.u32(bit % 32)) & 1)
        if not less(rest, modulus):
            borrow = kj.u32(0)
            for k in range(LIMBS + 1):
                before = rest[k]
                difference = before - modulus[k]
                rest[k] = difference - borrow
                borrow = kj.u32(before < modulus[k]) | kj.u32(difference < borrow)
    for k in range(LIMBS):
        out[i, k] = rest[k]


def to_limbs(numbers: list[int]) -> np.ndarray:
    """Rows of limbs, the least significant first."""
    rows = [[n >> (32 * k) & 0xFFFFFFFF for k in range(LIMBS)] for n in numbers]
    return np.array(rows, np.uint32)


def from_limbs(rows: np.ndarray) -> list[int]:
    """The numbers again."""
    return [sum(int(limb) << (32 * k) for k, limb in enumerate(row)) for row in rows]


def main() -> None:
    """Random numbers and the largest ones, compared with Python's integers."""
    count = 50
    a, b, c = ([random.getrandbits(256) for _ in range(count)] for _ in range(3))
    a[0], b[0], c[0] = P - 1, P - 1, P - 1
    a[1], b[1], c[1] = 2**256 - 1, 2**256 - 1, 2**256 - 1
    out = np.zeros((count, LIMBS), np.uint32)
    multiply_add[count](to_limbs(a), to_limbs(b), to_limbs(c), to_limbs([P])[0], out)
    assert from_limbs(out) == [(x * y + z) % P for x, y, z in zip(a, b, c, strict=True)]
    print(f"{count} products of 256-bit integers agree with Python's")


if __name__ == "__main__":
    main()
