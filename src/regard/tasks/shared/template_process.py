"""A program of its own that renders chat templates: they come with a model's folder, and may loop for ever or fill the memory.

It reads one JSON object per line, {"template", "names", "messages"}, and writes {"text"} or {"error"}. It uses only the standard
library and Jinja: `TemplateProcess` in chat.py starts it without this package. The process has little memory, and is killed if it
takes too long.
"""

import json
import signal
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template

MAX_MEMORY = 512 * 2**20
ALARM_SECONDS = 10
MAX_LENGTH = 1_000_000
"""Characters of a rendered conversation."""


def limit_memory() -> None:
    """Let allocations beyond the limit fail; Windows has no such limit."""
    try:
        import resource
    except ModuleNotFoundError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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
    return environment.from_string(template)


def render(request: dict[str, object]) -> dict[str, str]:
    """Return the text of a conversation, or the reason why there is none."""
    from jinja2 import TemplateError

    try:
        template, names, messages = str(request["template"]), dict(request["names"]), request["messages"]  # type: ignore[call-overload]
        parts, length = [], 0
        for part in compile_template(template).generate(messages=messages, add_generation_prompt=True, **names):
            length += len(part)
            if length > MAX_LENGTH:
                return {"error": f"its text has more than {MAX_LENGTH:,} characters"}
            parts.append(part)
        return {"text": "".join(parts)}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError) as error:
        return {"error": str(error).splitlines()[0][:200] if str(error) else type(error).__name__}


def main() -> None:
    limit_memory()
    set_alarm = getattr(signal, "alarm", lambda seconds: None)
    for line in sys.stdin:
        set_alarm(ALARM_SECONDS)  # ends the process, if its parent has died and cannot
        sys.stdout.write(json.dumps(render(json.loads(line))) + "\n")
        sys.stdout.flush()
        set_alarm(0)


if __name__ == "__main__":
    main()
