"""Stateless random numbers: each one is a pure function of the keys it is drawn for."""

import numpy as np


def hash64(*keys: int | np.ndarray) -> np.ndarray:
    """Hash integers, or arrays of them, to well-mixed 64-bit numbers (splitmix64, Steele et al. 2014)."""
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            state = (state ^ np.asarray(key).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def hash_uniform(*keys: int | np.ndarray) -> np.ndarray:
    """Hash integers, or arrays of them, to floats uniform in [0, 1)."""
    return (hash64(*keys) >> np.uint64(11)) * 2.0**-53
