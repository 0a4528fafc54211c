"""Chat templates: conversations with a language model whose folder has a Hugging Face template."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UserError
from regard.interop.config import read_json
from regard.tasks.base import Run
from regard.tasks.language import LanguageRun
from regard.tokens.special_tokens import NO_TOKEN

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TEMPLATE_LENGTH = 100_000


def chat_template(run: Run) -> str | None:
    """Return the run's template, from chat_template.jinja or tokenizer_config.json; None without one."""
    if "generate" not in run.task.verbs:
        return None
    own, named = run.folder / "chat_template.jinja", read_tokenizer_config(run.folder).get("chat_template")
    if own.is_file():
        named = own.read_text(encoding="utf-8")
    elif isinstance(named, list):
        named = next((one.get("template") for one in named if isinstance(one, dict) and one.get("name") == "default"), None)
    return named if isinstance(named, str) and 0 < len(named) <= MAX_TEMPLATE_LENGTH else None


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json, if there is one."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def encode_conversation(run: LanguageRun, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Tokenize a conversation, up to where the answer begins.

    Special tokens that the template writes are special tokens; in a message they would be an injection, and are refused.
    """
    template = chat_template(run)
    if template is None:
        raise UserError(f"{run.folder} has no chat template; use /v1/completions")
    library = run.tokenizers[0].library
    special = {token.content for token in library.get_added_tokens_decoder().values()}
    for number, message in enumerate(messages, start=1):
        if forged := next((token for token in special if token in message["content"]), None):
            raise UserError(
                f"message {number} has {forged!r} in it, a special token that only the template may write; leave it out"
            )
    text = render_template(template, messages, template_tokens(run))
    library.encode_special_tokens = False
    try:
        ids = library.encode(text, add_special_tokens=False).ids
    finally:
        library.encode_special_tokens = True
    bos = run._special_tokens.bos
    ids = ids if bos in (NO_TOKEN, *ids[:1]) else [bos, *ids]
    if not ids:
        raise UserError("the chat template renders these messages as an empty text")
    max_context = run._max_context
    if max_context is not None and len(ids) >= max_context:
        raise UserError(f"the conversation has {len(ids)} tokens, and the model takes {max_context} with its answer; shorten it")
    return ids


def template_tokens(run: LanguageRun) -> dict[str, str]:
    """Return the special tokens by their Hugging Face names (bos_token …), which a template may use."""
    found = {}
    for name, value in read_tokenizer_config(run.folder).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def render_template(template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
    """Return the text of a conversation."""
    from jinja2 import TemplateError

    try:
        conversation = [dict(message) for message in messages]
        return str(compile_template(template).render(messages=conversation, add_generation_prompt=True, **names))
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(f"the chat template does not take these messages ({reason})") from None


@lru_cache(maxsize=16)
def compile_template(template: str) -> "Template":
    """Compile a template in an immutable sandbox, as `transformers` does."""
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
