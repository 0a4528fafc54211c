"""Chat templates: conversations with a language model whose folder has a Hugging Face template."""

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from regard.corpus.lines import printable
from regard.errors import UserError
from regard.interop.config import read_json
from regard.tasks.base import Run
from regard.tasks.language import LanguageRun
from regard.tokens.special_tokens import NO_TOKEN

MAX_TEMPLATE_LENGTH = 100_000
RENDER_SECONDS = 2.0
"""Time to render a conversation; a template that takes longer is one that never ends."""


class TemplateBusy(UserError):
    """The template takes too long, or is occupied with other conversations for too long."""


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
    """Tokenize a conversation, up to where the answer begins."""
    return encode_rendered(run, start_rendering(run, messages).result())


def start_rendering(run: LanguageRun, messages: Sequence[Mapping[str, str]]) -> Future[str]:
    """Start to render a conversation when it is its turn; a future that is cancelled before that gives up its turn."""
    return template_process(run.folder).thread.submit(render_conversation, run, messages)


def render_conversation(run: LanguageRun, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a conversation by the run's template.

    Special tokens that the template writes are special tokens; in a message they would be an injection, and are refused.
    """
    template = chat_template(run)
    if template is None:
        raise UserError(f"{run.folder} has no chat template; use /v1/completions")
    special = {token.content for token in run.tokenizers[0].library.get_added_tokens_decoder().values()}
    for number, message in enumerate(messages, start=1):
        if forged := next((token for token in special if token in message["content"]), None):
            raise UserError(
                f"message {number} has {forged!r} in it, a special token that only the template may write; leave it out"
            )
    return template_process(run.folder).render(template, messages, template_tokens(run))


def encode_rendered(run: LanguageRun, text: str) -> list[int]:
    """Return the ids of a conversation that the template has rendered."""
    library = run.tokenizers[0].library
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


class TemplateProcess:
    """The process that renders a run's chat template: started when it is first needed, and again after it was killed or died."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "chat template")
        """The thread that waits for the process: conversations take turns."""
        self._process: subprocess.Popen[str] | None = None

    def render(self, template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
        """Return the text of a conversation; kill the process if that takes too long."""
        request = {"template": template, "messages": [dict(message) for message in messages], "names": dict(names)}
        answer = self._ask(json.dumps(request))
        if "error" in answer:
            raise UserError(f"the chat template does not take these messages ({printable(answer['error'])})")
        return answer["text"]

    def _ask(self, request: str) -> dict[str, str]:
        process = self._started()
        timer = threading.Timer(RENDER_SECONDS, process.kill)
        timer.start()
        try:
            line = exchange(process, request)
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            self._end()
            raise TemplateBusy(f"the chat template takes more than {RENDER_SECONDS:g} seconds, or too much memory")
        answer: dict[str, str] = json.loads(line)
        return answer

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._process.poll() is not None:
            self._end()  # it has died
        if self._process is None:
            command = [sys.executable, "-I", str(Path(__file__).with_name("template_process.py"))]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
            )
            atexit.register(self._process.kill)
            exchange(self._process, json.dumps({"template": "", "names": {}, "messages": []}))  # the time to start does not count
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(OSError), self._process:  # closes the pipes, one of them with text that nobody read, and waits
                atexit.unregister(self._process.kill)
            self._process = None


def exchange(process: "subprocess.Popen[str]", request: str) -> str:
    """Return the line that a process answers to a line, or "" if it has ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:  # EPIPE; Windows has another number
        return ""


@lru_cache(maxsize=64)
def template_process(folder: Path) -> TemplateProcess:
    """Return the process for the templates of one folder: a template that takes long delays no other model."""
    return TemplateProcess()
