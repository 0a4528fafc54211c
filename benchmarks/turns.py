"""Ours and the peers on the same work, in turns: medians with their spread, and ratios; nothing is told where they disagree.

Every round lets each side do the work once, so that whatever else the machine does meets all of them. A side's speed is the
median of its rounds; its ratio to another the median of the rounds' ratios, with the quartiles of both. On a machine that others
use too, the ratio of the processor's time says more than that of the clock.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

Work = Callable[[], Any]


class Disagreement(SystemExit):
    """Two sides that do not say the same are not compared."""


def asked(doc: str | None, **options: Any) -> argparse.Namespace:
    """What the command line says: of names in a tuple one, without dashes; a switch where it is off; else a number."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in options.items():
        if isinstance(value, tuple):
            parser.add_argument(name, choices=value)
        elif value is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=int, default=value, help=f"{value} when not given")
    return parser.parse_args()


class Times(list):
    """Seconds on the clock of each round; in `worked` what the processor gave to it, of all threads."""

    def __init__(self) -> None:
        super().__init__()
        self.worked: list[float] = []


def take_turns(sides: Mapping[str, Work], rounds: int, *, rest: float = 0.05) -> dict[str, Times]:
    """Seconds of each side in each round, after one that does not count; threads of one side go to sleep before the next."""
    times: dict[str, Times] = {name: Times() for name in sides}
    for number in range(rounds + 1):
        for name, work in sides.items():
            time.sleep(rest)
            begun, worked = time.perf_counter(), time.process_time()
            work()
            if number:
                times[name].append(time.perf_counter() - begun)
                times[name].worked.append(time.process_time() - worked)
    return times


def report(
    what: str, times: Mapping[str, Times], *, amount: float, unit: str, against: Sequence[str], agreement: str, **more: Any
) -> None:
    """One JSON object a side: how much it does a second, and how many times what each peer does."""
    for name, seconds in times.items():
        row = {
            "what": what,
            "side": name,
            unit: round(amount / median(seconds), 1),
            "quartiles": spread([amount / s for s in seconds]),
        }
        for peer in against:
            if peer in times and peer != name:
                ratios = [b / a for a, b in zip(seconds, times[peer])]
                row[f"times {peer}"] = round(median(ratios), 2)
                row[f"times {peer}, quartiles"] = spread(ratios, 2)
                worked = zip(seconds.worked, times[peer].worked)
                row[f"times {peer}, by processor time"] = round(median(b / a for a, b in worked), 2)
        print(
            json.dumps(
                {**row, **more, "agreement": agreement, "rounds": len(seconds), "load": round(os.getloadavg()[0], 2)},
                ensure_ascii=False,
            ),
            flush=True,
        )


def spread(values: Sequence[float], digits: int = 1) -> list[float]:
    if len(values) < 2:
        return [round(values[0], digits)] * 2
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [round(low, digits), round(high, digits)]


def require_close(ours: Any, theirs: Any, tolerance: float, what: str) -> str:
    """Tensors that are the same within a tolerance, at the same precision; what to say of it."""
    if ours.shape != theirs.shape:
        raise Disagreement(f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}; nothing is reported")
    apart = float((ours.float() - theirs.float()).abs().max())
    if not apart <= tolerance:
        raise Disagreement(f"{what}: {apart:.2e} apart, more than {tolerance:.0e}; nothing is reported")
    return f"{what} within {apart:.1e}"


def require_alike(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], least: float, what: str) -> str:
    """Texts that are the same up to their first difference, in the mean over at least this share of their tokens."""
    shares = [common(a, b) / max(len(a), len(b), 1) for a, b in zip(ours, theirs, strict=True)]
    same = sum(shares) / len(shares)
    if same < least:
        raise Disagreement(
            f"{what}: {same:.0%} of the tokens are the same before the first difference, fewer than {least:.0%}; "
            "nothing is reported"
        )
    return f"{what}: {same:.0%} of tokens before the first difference"


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
