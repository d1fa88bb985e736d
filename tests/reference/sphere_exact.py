"""The von Mises-Fisher normaliser and moments in 40 digits, by Bessel series and, independently, by quadrature."""

from __future__ import annotations

from functools import cache

import mpmath as mp


@cache
@mp.workdps(40)
def by_series(dim: int, kappa: float) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """``log C_D(κ)``, ``A_D(κ)`` and ``A_D'(κ)`` from mpmath's Bessel functions; slow for dim and κ both large."""
    order, x = mp.mpf(dim) / 2 - 1, mp.mpf(kappa)
    if x == 0:
        return (
            order * mp.log(2) + mp.loggamma(order + 1) - mp.mpf(dim) / 2 * mp.log(2 * mp.pi),
            mp.mpf(0),
            1 / mp.mpf(dim),
        )
    bessel = mp.besseli(order, x, maxterms=10**6)
    ratio = mp.besseli(order + 1, x, maxterms=10**6) / bessel
    log_c = order * mp.log(x) - mp.mpf(dim) / 2 * mp.log(2 * mp.pi) - mp.log(bessel)
    return log_c, ratio, 1 - ratio**2 - (dim - 1) / x * ratio


@cache
@mp.workdps(40)
def by_quadrature(dim: int, kappa: float) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """The same three from the density of the cosine w = tanh t, by the trapezoidal rule in t.

    The integrand exp(κ tanh t) / cosh(t)^(D−1) is analytic and decays on both sides, so the rule converges
    exponentially; the step is a fraction of the peak's width.
    """
    n, x = mp.mpf(dim - 1), mp.mpf(kappa)

    def exponent(t: mp.mpf) -> mp.mpf:
        return x * mp.tanh(t) - n * mp.log(mp.cosh(t))

    peak_cosine = 2 * x / (n + mp.sqrt(n * n + 4 * x * x))
    peak = mp.atanh(peak_cosine)
    width = 1 / mp.sqrt((1 - peak_cosine**2) * (n + 2 * x * peak_cosine))
    step = min(width, mp.mpf(1)) / 6
    mass, first, second = mp.mpf(0), mp.mpf(0), mp.mpf(0)
    shift = mp.tanh(peak)  # moments about the peak keep the variance's digits
    for direction in (1, -1):
        index = 0 if direction == 1 else 1
        while (drop := exponent(peak + direction * index * step) - exponent(peak)) > -85 or index < 3:
            weight, offset = mp.exp(drop), mp.tanh(peak + direction * index * step) - shift
            mass, first, second = mass + weight, first + weight * offset, second + weight * offset**2
            index += 1
    log_integral = mp.log(mass * step) + exponent(peak)
    log_area_below = mp.log(2) + n / 2 * mp.log(mp.pi) - mp.loggamma(n / 2)  # of the unit sphere of R^(dim−1)
    return -log_area_below - log_integral, shift + first / mass, second / mass - (first / mass) ** 2


def exact(dim: int, kappa: float) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """``log C_D(κ)``, ``A_D(κ)``, ``A_D'(κ)``: mpmath's Bessel functions where they are quick, else quadrature."""
    quick = kappa < 1e5 or dim <= 128
    return by_series(dim, kappa) if quick else by_quadrature(dim, kappa)


@mp.workdps(40)
def exact_inverse(dim: int, resultant: float, guess: float) -> mp.mpf:
    """κ with A_D(κ) = R for R exactly as given, by Newton on the 40-digit values."""
    kappa = mp.mpf(guess)
    for _ in range(4):
        _, value, slope = exact(dim, kappa)
        kappa -= (value - mp.mpf(resultant)) / slope
    return kappa
