"""Draw how a run writes: each token with its probability, what else it might have been, and what it looked at."""

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.errors import Mistake
from regard.show.attention import KINDS, Choice, chosen_group, named, numbers_of, sharpest, token_number, whose
from regard.show.figures.decoding_steps import Generation, Step, generation, generation_page, generation_text
from regard.show.figures.labels import clean, shorten
from regard.show.figures.style import save, write
from regard.show.recording import BUDGET, Reading, groups, reading, require_attention, sides, spelled, stacks
from regard.tasks.base import Run
from regard.tasks.language import LanguageRun
from regard.tokens.special import NO_MARK

MAX_TOKENS, OTHERS = 20, 5


def show_generation(
    run: Run, text: str, choice: Choice, *, max_tokens: int | None = None, out: Path | None = None, terminal: bool = False
) -> str:
    """Let a run write, and draw its steps. In words, what was drawn."""
    found = generate(run, text, choice, max_tokens)
    first = 0 if choice.token is None else token_number([step.word for step in found.steps], choice.token)
    title = shorten(clean(text), 90)
    if out is not None:
        if out.suffix.lower() == ".html":
            write(out, generation_page(found, title=title, first=first).encode())
        else:
            save(generation(found, title=title, first=first), out)
    about = f"{found.name}: {named(len(found.steps), 'step')}" + (f" ({found.note})" if found.note else "")
    return about + (f"\n\n{generation_text(found, first)}" if terminal else "")


def generate(run: Run, text: str, choice: Choice, max_tokens: int | None = None) -> Generation:
    """What is written, token by token, and what the chosen head looked at, or all of the chosen layer, on average."""
    return looked(*writing(run, text, max_tokens), choice)


def look_back(run: LanguageRun, prompt: str, tokens: Sequence[int], choice: Choice) -> Generation:
    """The same of what was written after a prompt, however it was chosen."""
    require_attention(run)
    if not tokens:
        raise Mistake("nothing was written: there is nothing to show")
    return looked(*reading_on(run, run.begun([prompt])[0], list(tokens)), choice)


def looked(read: Reading, said: list[int], rows: list[int] | None, choice: Choice) -> Generation:
    run = read.run
    logits, seen = read.watch(budget=BUDGET, keep="top", rows=rows)
    record = read.recorded(seen)
    maps = groups(record)
    number = chosen_group(maps, choice.kind)
    picked, group = maps[number], list(stacks(record).values())[number]
    layer, head, _ = numbers_of(picked, Choice(kind=choice.kind, layer=choice.layer, head=choice.head))
    layer = sharpest(picked) if layer is None else layer
    if picked.name == KINDS["encoder"]:
        raise Mistake(f"--kind {choice.kind}: no token is said there; use cross or decoder")
    place, (_, keys, _) = group[layer], sides(group[layer], record.tokens, 0)
    weights = place.weights()[0][:, : len(said), : len(keys)]  # (H, T, S)
    p = (logits[0] if rows is None else logits[0, rows]).float().softmax(-1).cpu()  # (T, V)
    words = spelled(run.tokenizers[-1], said)
    return Generation(
        f"{picked.name}, layer {picked.layers[layer]}, {whose(picked, head)}",
        keys,
        [Step(words[i], float(p[i, token]), others(run, p[i], token)) for i, token in enumerate(said)],
        weights.mean(0) if head is None else weights[head],
        None if place.kind == "cross" else 1 + (0 if rows is None else rows[0]),
        place.dropped and f"without {place.dropped}",
    )


def others(run: Run, p: torch.Tensor, said: int) -> list[tuple[str, float]]:
    """The likeliest tokens besides the one that was said."""
    best = [token for token in p.topk(min(OTHERS + 1, len(p))).indices.tolist() if token != said][:OTHERS]
    return list(zip(spelled(run.tokenizers[-1], best), p[best].tolist()))


def writing(run: Run, text: str, max_tokens: int | None) -> tuple[Reading, list[int], list[int] | None]:
    """What a run has read when it has written, the tokens that it said, and where it said them, when not everywhere."""
    if isinstance(run, LanguageRun):
        return writing_on(run, text, max_tokens or MAX_TOKENS)
    if max_tokens is not None:
        raise Mistake(f"--max-tokens {max_tokens}: for language models; {run.folder} {run.does}")
    read = reading(run, text)
    if not read.both:
        raise Mistake(f"{run.folder} {run.does}; --view steps is for runs that write, one token after another")
    return read, [*read.inputs["target"][0, 1:].tolist(), run.marks.end], None


def writing_on(run: LanguageRun, text: str, max_tokens: int) -> tuple[Reading, list[int], list[int]]:
    """From a prompt; its end is said too, where it came by itself."""
    require_attention(run)
    (begun,), (written,) = run.begun([text]), run.generate([text], max_tokens=max_tokens)
    end, room = run.writing_marks().end, run.room(len(begun), max_tokens)
    return reading_on(run, begun, [*written.tokens, end] if end != NO_MARK and len(written.tokens) < room - 1 else written.tokens)


def reading_on(run: LanguageRun, begun: list[int], said: list[int]) -> tuple[Reading, list[int], list[int]]:
    """All that was read when the last token was said."""
    ids = [*begun, *said[:-1]]
    tokens = {"text": [spelled(run.tokenizers[0], ids)], "said": [spelled(run.tokenizers[0], said)]}
    read = Reading(run, {"target": torch.tensor([ids], device=run.device)}, tokens, False)
    return read, said, list(range(len(begun) - 1, len(ids)))
