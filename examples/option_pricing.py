"""The price of a European call option by Monte Carlo, against the formula of Black and Scholes."""

import math

import numpy as np

import khaljit as kj

PATHS = 64  # of each invocation


@kj.jit(workgroup=256)
def simulate(
    sums: kj.Array2[kj.f32],
    seed: kj.i32,
    spot: kj.f32,
    strike: kj.f32,
    rate: kj.f32,
    volatility: kj.f32,
    years: kj.f32,
) -> None:
    """The sum of the discounted payoffs of each workgroup's paths, and the sum of their squares."""
    drift = (rate - 0.5 * volatility * volatility) * years
    spread = volatility * kj.sqrt(years)
    total, squares = 0.0, 0.0
    for path in range(PATHS):
        z = kj.random_normal(seed, kj.global_id(0), path)
        payoff = max(spot * kj.exp(drift + spread * z) - strike, 0.0)
        total += payoff
        squares += payoff * payoff
    total, squares = kj.workgroup_add(total), kj.workgroup_add(squares)
    if kj.local_id(0) == 0:
        discount = kj.exp(-rate * years)
        sums[kj.workgroup_id(0), 0] = total * discount
        sums[kj.workgroup_id(0), 1] = squares * discount * discount


def black_scholes(
    spot: float, strike: float, rate: float, volatility: float, years: float
) -> float:
    """The exact price."""
    spread = volatility * math.sqrt(years)
    d = (math.log(spot / strike) + rate * years) / spread + 0.5 * spread
    below = (0.5 * math.erfc(-x / math.sqrt(2.0)) for x in (d, d - spread))
    return spot * next(below) - strike * math.exp(-rate * years) * next(below)


def main() -> None:
    """A million paths; the same on every device, since the random numbers are."""
    terms = (100.0, 105.0, 0.03, 0.2, 1.5)  # spot, strike, rate, volatility, years
    workgroups = 64
    sums = np.zeros((workgroups, 2), np.float32)
    simulate[kj.Workgroups(workgroups)](sums, 2026, *terms)
    count = workgroups * 256 * PATHS
    price, square = sums.sum(0, dtype=np.float64) / count
    error = math.sqrt((square - price * price) / count)
    print(f"{price:.4f} +- {error:.4f} by {count} paths, {black_scholes(*terms):.4f} exactly")
    assert abs(price - black_scholes(*terms)) < 4.0 * error


if __name__ == "__main__":
    main()
