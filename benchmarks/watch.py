"""Measure the cost of watching: BERT-base over 64 × 512 tokens in bf16 unwatched, with one layer watched, with all layers under a
budget; `transformers`, which leaves the fused kernels to return weights; and 8,192 positions, whose maps would need 155 GB.

    python benchmarks/watch.py                        (one GPU; the variants alternate, medians over the rounds)
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
from harness import parse_args
from torch import nn

import regard
from regard.models.bert import TextEmbedder
from regard.recipe import EncoderModel

VOCABULARY, GIB = 30522, 2**30


def bert(**settings: Any) -> nn.Module:
    with torch.device("cuda"):
        return (
            TextEmbedder(EncoderModel(kind="transformer", preset="bert-base", **settings), VOCABULARY).to(torch.bfloat16).eval()
        )


class Variant:
    """A forward pass, and what is watched during it."""

    def __init__(self, forward: Callable[[], Any], watching: Callable[[], AbstractContextManager] = nullcontext):
        self.forward, self.watching = forward, watching
        self.times: list[float] = []
        self.record = self.peak = 0
        self.kept = ""

    @torch.no_grad()
    def run(self) -> None:
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


def alternate(variants: dict[str, Variant], rounds: int) -> list[dict[str, Any]]:
    for variant in variants.values():
        variant.run()
        variant.run()
        variant.times.clear()
    for _ in range(rounds):
        for variant in variants.values():
            variant.run()
    plain = next(iter(variants.values()))
    return [
        {
            "variant": name,
            "ms": round(median(variant.times), 3),
            "relative": round(median(variant.times) / median(plain.times), 3),
            "record_gib": round(variant.record / GIB, 3),
            "additional_memory_gib": round((variant.peak - plain.peak) / GIB, 3),
            "kept": variant.kept,
        }
        for name, variant in variants.items()
    ]


def forward_pass(model: nn.Module, batch: int, length: int) -> Callable[[], Any]:
    ids = torch.randint(5, VOCABULARY, (batch, length), device="cuda")
    lengths = torch.full((batch,), length, device="cuda")
    return lambda: model(ids, lengths)


def short_texts(batch: int, length: int, rounds: int) -> list[dict[str, Any]]:
    model = bert()
    forward = forward_pass(model, batch, length)
    return alternate(
        {
            "unwatched": Variant(forward),
            "one layer": Variant(forward, lambda: regard.watch(model, layers=[5])),
            "all layers under 1 GB": Variant(forward, lambda: regard.watch(model, budget="1GB")),
            "all layers under 1 GB, top": Variant(forward, lambda: regard.watch(model, budget="1GB", keep="top")),
            "all layers under 1 GB, entropy": Variant(forward, lambda: regard.watch(model, budget="1GB", keep="entropy")),
            "all layers": Variant(forward, lambda: regard.watch(model)),
        },
        rounds,
    )


def transformers_models(batch: int, length: int, rounds: int) -> list[dict[str, Any]]:
    from transformers import BertConfig, BertModel

    fused, eager = (
        BertModel(BertConfig(attn_implementation=implementation)).to("cuda", torch.bfloat16).eval()
        for implementation in ("sdpa", "eager")
    )
    ids = torch.randint(5, VOCABULARY, (batch, length), device="cuda")
    return alternate(
        {
            "transformers, fused": Variant(lambda: fused(ids)),
            "transformers, fused, watched under 1 GB": Variant(lambda: fused(ids), lambda: regard.watch(fused, budget="1GB")),
            "transformers, fused, watched under 1 GB, top": Variant(
                lambda: fused(ids), lambda: regard.watch(fused, budget="1GB", keep="top")
            ),
            "transformers, with weights": Variant(lambda: eager(ids, output_attentions=True)),
        },
        rounds,
    )


def long_texts(batch: int, length: int, rounds: int) -> list[dict[str, Any]]:
    model = bert(max_length=length)
    forward = forward_pass(model, batch, length)
    return alternate(
        {
            "unwatched": Variant(forward),
            "all layers under 200 MB": Variant(forward, lambda: regard.watch(model, budget="200MB")),
            "all layers under 1 GB": Variant(forward, lambda: regard.watch(model, budget="1GB")),
        },
        rounds,
    )


def main() -> None:
    args = parse_args(__doc__, rounds=20, batch=64, length=512, long=8192)
    for part, batch, length, rounds in (
        (short_texts, args.batch, args.length, args.rounds),
        (transformers_models, args.batch, args.length, args.rounds),
        (long_texts, 8, args.long, 3),
    ):
        for row in part(batch, length, rounds):
            print(json.dumps({"what": f"{batch} x {length}"} | row))


if __name__ == "__main__":
    main()
