"""Conversations with a language model whose folder says how they are written: a chat template, as Hugging Face has it."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.interop.config import read_json
from regard.tasks.base import Run
from regard.tasks.language import LanguageRun
from regard.tokens.special_tokens import NO_TOKEN

LONGEST_TEMPLATE = 100_000


def chat_template(run: Run) -> str | None:
    """The run's template, in a file of its own or in tokenizer_config.json; None where there is none."""
    if not isinstance(run, LanguageRun) or not hasattr(run.model, "step"):
        return None
    own, named = run.folder / "chat_template.jinja", read_tokenizer_config(run.folder).get("chat_template")
    if own.is_file():
        named = own.read_text(encoding="utf-8")
    elif isinstance(named, list):
        named = next((one.get("template") for one in named if isinstance(one, dict) and one.get("name") == "default"), None)
    return named if isinstance(named, str) and 0 < len(named) <= LONGEST_TEMPLATE else None


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def encode_conversation(run: LanguageRun, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The ids of a conversation, up to where the answer begins. The marks that the template writes are marks; in what was said
    they would be somebody's forgery, and are refused."""
    template = chat_template(run)
    if template is None:
        raise UserError(f"{run.folder} has no chat template; use /v1/completions")
    library = run.tokenizers[0].library
    marks = {token.content for token in library.get_added_tokens_decoder().values()}
    for number, message in enumerate(messages, start=1):
        if forged := next((mark for mark in marks if mark in message["content"]), None):
            raise UserError(f"message {number} has {forged!r} in it, a mark that only the template may write; leave it out")
    text = render_template(template, messages, template_tokens(run))
    library.encode_special_tokens = False
    try:
        ids = library.encode(text, add_special_tokens=False).ids
    finally:
        library.encode_special_tokens = True
    begin = run.special_tokens.bos
    ids = ids if begin in (NO_TOKEN, *ids[:1]) else [begin, *ids]
    if not ids:
        raise UserError("the chat template makes nothing of these messages")
    if run.most is not None and len(ids) >= run.most:
        raise UserError(f"the conversation is {len(ids)} tokens long, and the model takes {run.most} with its answer; shorten it")
    return ids


def template_tokens(run: LanguageRun) -> dict[str, str]:
    """bos_token and the like, by which a template may write marks."""
    found = {}
    for name, value in read_tokenizer_config(run.folder).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def render_template(template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
    from jinja2 import TemplateError

    try:
        return compile_template(template).render(
            messages=[dict(message) for message in messages], add_generation_prompt=True, **names
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(f"the chat template does not take these messages ({reason})") from None


@lru_cache(maxsize=16)
def compile_template(template: str) -> Any:
    """As `transformers` does: a sandbox in which nothing can be changed."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = raise_exception
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise UserError(f"the chat template cannot be read: {error}") from None
