"""Numerical integration: Gauss-Legendre rules (Abramowitz and Stegun 1964, 25.4.29). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache


@lru_cache(maxsize=32)
def legendre(nodes: int) -> tuple[tuple[float, float], ...]:
    """(node, weight) on (-1, 1) in ascending order; exact for polynomials up to degree 2 * nodes - 1.

    The roots of the Legendre polynomial by Newton's method from Tricomi's approximation.
    """
    found = []
    for i in range(nodes, 0, -1):
        x = math.cos(math.pi * (i - 0.25) / (nodes + 0.5))
        slope = 1.0
        for _ in range(100):
            before, value = 1.0, x
            for degree in range(2, nodes + 1):
                before, value = value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree
            slope = nodes * (x * value - before) / (x * x - 1)
            step = value / slope
            x -= step
            if abs(step) < 1e-15:
                break
        found.append((x, 2 / ((1 - x * x) * slope * slope)))
    return tuple(found)


@dataclass(frozen=True)
class Panel:
    """An interval to integrate over. `cubic` lays the nodes out in the cube root, for a pole of ln at 0."""

    left: float
    right: float
    cubic: bool = False

    def points(self, nodes: int) -> list[tuple[float, float]]:
        """(x, weight) in ascending order; the weights sum up to the length of the interval."""
        if not self.cubic:
            half, middle = (self.right - self.left) / 2, (self.right + self.left) / 2
            return [(middle + half * x, half * w) for x, w in legendre(nodes)]
        low, high = math.cbrt(self.left), math.cbrt(self.right)
        half, middle = (high - low) / 2, (high + low) / 2
        roots = ((middle + half * x, half * w) for x, w in legendre(nodes))
        return [(root**3, 3 * root * root * weight) for root, weight in roots]
