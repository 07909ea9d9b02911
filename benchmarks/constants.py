"""The numbers of the workloads, the same in every implementation."""

from __future__ import annotations

from typing import Final

__all__ = [
    "A1",
    "A2",
    "A3",
    "A4",
    "A5",
    "BINS",
    "GAMMA",
    "HALF_ROOT",
    "RATE",
    "ROOT_TAU_INVERSE",
    "SOFTENING",
    "TILE",
    "VOLATILITY",
]

BINS: Final = 256
TILE: Final = 16
SOFTENING: Final = 1e-3

# Black-Scholes: the coefficients of Abramowitz and Stegun 26.2.17, and 1 / sqrt(2) and so on.
RATE: Final = 0.02
VOLATILITY: Final = 0.3
HALF_ROOT: Final = 0.7071067811865476
ROOT_TAU_INVERSE: Final = 0.3989422804014327
A1: Final = 0.31938153
A2: Final = -0.356563782
A3: Final = 1.781477937
A4: Final = -1.821255978
A5: Final = 1.330274429
GAMMA: Final = 0.2316419
