"""What NumPy lacks: Black-Scholes by SciPy's error function."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special

from benchmarks.constants import HALF_ROOT, RATE, VOLATILITY

Array = np.ndarray[Any, Any]


def black_scholes_erf(price: Array, strike: Array, years: Array, call: Array, put: Array) -> None:
    spread = VOLATILITY * np.sqrt(years)
    d1 = (np.log(price / strike) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * years) / spread
    d2 = d1 - spread
    n1 = 0.5 + 0.5 * scipy.special.erf(d1 * HALF_ROOT)
    n2 = 0.5 + 0.5 * scipy.special.erf(d2 * HALF_ROOT)
    later = strike * np.exp(-RATE * years)
    call[:] = price * n1 - later * n2
    put[:] = later * (1 - n2) - price * (1 - n1)
