"""One self-contained HTML page about a run: no network, no script; light and dark, on a phone and in print."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --ink: #1b2a41; --soft: #5c6878; --line: #d9dde3; --card: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181f; --ink: #e4e8ee; --soft: #9aa6b5; --line: #2c3440; --card: #f4f5f3; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 54rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.55 Charter, "Bitstream Charter", Cambria, Georgia, serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
p.lead { color: var(--soft); font-size: 1.08rem; margin: 0 0 1.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font: .88rem/1.5 ui-sans-serif, system-ui, sans-serif;
        font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .32rem .9rem .32rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
td.number { white-space: nowrap; }
td.small { font-size: .74rem; color: var(--soft); overflow-wrap: anywhere; min-width: 16rem; }
figure { margin: 1.2rem 0; }
figure .card { background: var(--card); border: 1px solid var(--line); border-radius: 4px; padding: .8rem; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; display: block; margin: 0 auto; }
figcaption { color: var(--soft); font-size: .88rem; margin-top: .4rem; }
dl { margin: 0; } dl div { padding: .55rem 0; border-bottom: 1px solid var(--line); }
dt { color: var(--soft); } dd { margin: 0; } dd.differs { color: var(--soft); font-size: .9rem; }
code { font: .86rem ui-monospace, monospace; }
pre { overflow-x: auto; padding: .7rem .9rem; border: 1px solid var(--line); border-radius: 4px; }
@media (max-width: 40rem) { figure svg { max-width: 200%; } }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class HtmlReport:
    title: str
    summary: str
    facts: Sequence[tuple[str, str]] = ()
    scores: Sequence[tuple[str, str, str, str, str]] = ()
    """(set, metric, score, interval, signature)"""
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = ()
    """(title, header, rows)"""
    notes: Sequence[str] = ()
    examples: Sequence[tuple[str, str, str]] = ()
    """(source, hypothesis, reference)"""
    figures: Sequence[tuple[str, str]] = field(default_factory=list)
    """(caption, <svg>)"""
    commands: Sequence[str] = ()


def html_report(report: HtmlReport) -> str:
    """The report as HTML; every word is escaped, only the figures are markup."""
    parts = [f"<h1>{escape(report.title)}</h1>", f'<p class="lead">{escape(report.summary)}</p>']
    if report.facts:
        parts.append(table((), report.facts))
    if report.scores:
        parts += ["<h2>Scores</h2>", table(("set", "metric", "score", "95% interval", "signature"), report.scores, small=4)]
    for title, header, rows in report.tables:
        parts += [f"<h2>{escape(title)}</h2>", table(header, rows)]
    parts += [f"<p>{escape(note)}</p>" for note in report.notes]
    if report.examples:
        parts += [
            "<h2>Translations of sentences it has never seen</h2>",
            "<dl>",
            *(example_row(*row) for row in report.examples),
            "</dl>",
        ]
    if report.figures:
        parts.append("<h2>Pictures</h2>")
        parts += [
            f'<figure><div class="card">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>'
            for caption, svg in report.figures
        ]
    if report.commands:
        commands = escape("\n".join(report.commands))
        parts += ["<h2>Go on</h2>", f"<pre><code>{commands}</code></pre>"]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], small: int | None = None) -> str:
    head = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in header)}</tr>" if header else ""
    kinds = ["small" if i == small else "number" if header and i else "" for i in range(len(rows[0]))]
    lines = ["".join(f"<td class={kind!r}>{escape(cell)}</td>" for kind, cell in zip(kinds, row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def example_row(source: str, hypothesis: str, reference: str) -> str:
    differs = "" if hypothesis == reference else f'<dd class="differs">reference: {escape(reference)}</dd>'
    return f"<div><dt>{escape(source)}</dt><dd>{escape(hypothesis)}</dd>{differs}</div>"
