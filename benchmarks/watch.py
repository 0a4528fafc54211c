"""What looking costs: BERT-base over 64 × 512 tokens in bf16 unwatched, with one layer watched, with all layers under a budget;
the way of `transformers`, which leaves the fused kernels to show weights; and 8,192 positions, whose maps would need 155 GB.

    python benchmarks/watch.py                        (one GPU; the ways take turns, medians of the rounds)
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
from torch import nn
from turns import asked

import regard
from regard.models.bert import TextEmbedder
from regard.recipe import EncoderModel

VOCABULARY, GIB = 30522, 2**30


def bert(**settings: Any) -> nn.Module:
    with torch.device("cuda"):
        return (
            TextEmbedder(EncoderModel(kind="transformer", preset="bert-base", **settings), VOCABULARY).to(torch.bfloat16).eval()
        )


class Way:
    """A forward pass, and what is watched while it goes."""

    def __init__(self, forward: Callable[[], Any], watching: Callable[[], AbstractContextManager] = nullcontext):
        self.forward, self.watching = forward, watching
        self.times: list[float] = []
        self.record = self.peak = 0
        self.kept = ""

    @torch.no_grad()
    def go(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        with self.watching() as seen:
            out = self.forward()
        end.record()
        torch.cuda.synchronize()
        self.times.append(start.elapsed_time(end))
        self.peak = torch.cuda.max_memory_allocated() - before
        if seen is not None:
            calls = [call for name in seen.names() for call in seen.calls[name]]
            self.record = sum(call.nbytes for call in calls)
            self.kept = ", ".join(sorted({f"{call.kind} {call.size}" for call in calls}))
        del out


def turns(ways: dict[str, Way], rounds: int) -> list[dict[str, Any]]:
    for way in ways.values():
        way.go()
        way.go()
        way.times.clear()
    for _ in range(rounds):
        for way in ways.values():
            way.go()
    plain = next(iter(ways.values()))
    return [
        {
            "way": name,
            "ms": round(median(way.times), 3),
            "times": round(median(way.times) / median(plain.times), 3),
            "record_gib": round(way.record / GIB, 3),
            "more_memory_gib": round((way.peak - plain.peak) / GIB, 3),
            "kept": way.kept,
        }
        for name, way in ways.items()
    ]


def passes(model: nn.Module, batch: int, length: int) -> Callable[[], Any]:
    ids = torch.randint(5, VOCABULARY, (batch, length), device="cuda")
    lengths = torch.full((batch,), length, device="cuda")
    return lambda: model(ids, lengths)


def short(batch: int, length: int, rounds: int) -> list[dict[str, Any]]:
    model = bert()
    forward = passes(model, batch, length)
    return turns(
        {
            "unwatched": Way(forward),
            "one layer": Way(forward, lambda: regard.watch(model, layers=[5])),
            "all layers under 1 GB": Way(forward, lambda: regard.watch(model, budget="1GB")),
            "all layers under 1 GB, top": Way(forward, lambda: regard.watch(model, budget="1GB", keep="top")),
            "all layers under 1 GB, entropy": Way(forward, lambda: regard.watch(model, budget="1GB", keep="entropy")),
            "all layers": Way(forward, lambda: regard.watch(model)),
        },
        rounds,
    )


def theirs(batch: int, length: int, rounds: int) -> list[dict[str, Any]]:
    from transformers import BertConfig, BertModel

    fused, eager = (BertModel(BertConfig(attn_implementation=how)).to("cuda", torch.bfloat16).eval() for how in ("sdpa", "eager"))
    ids = torch.randint(5, VOCABULARY, (batch, length), device="cuda")
    return turns(
        {
            "transformers, fused": Way(lambda: fused(ids)),
            "transformers, with weights": Way(lambda: eager(ids, output_attentions=True)),
        },
        rounds,
    )


def long(batch: int, length: int, rounds: int) -> list[dict[str, Any]]:
    model = bert(max_length=length)
    forward = passes(model, batch, length)
    return turns(
        {
            "unwatched": Way(forward),
            "all layers under 200 MB": Way(forward, lambda: regard.watch(model, budget="200MB")),
            "all layers under 1 GB": Way(forward, lambda: regard.watch(model, budget="1GB")),
        },
        rounds,
    )


def main() -> None:
    given = asked(__doc__, rounds=20, batch=64, length=512, long=8192)
    for part, batch, length, rounds in (
        (short, given.batch, given.length, given.rounds),
        (theirs, given.batch, given.length, given.rounds),
        (long, 8, given.long, 3),
    ):
        for row in part(batch, length, rounds):
            print(json.dumps({"what": f"{batch} x {length}"} | row))


if __name__ == "__main__":
    main()
