"""Report known vulnerabilities of the dependencies (pip-audit) and of the source (bandit), if these tools are installed.

Never fails: the findings are for a person to judge. `pip install pip-audit bandit` installs both.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {
    "pip_audit": [
        "--requirement",
        str(ROOT / "requirements.lock"),
        "--require-hashes",
        "--disable-pip",
        "--progress-spinner",
        "off",
    ],
    "bandit": ["--recursive", str(ROOT / "src"), "--quiet", "--severity-level", "medium"],
}


def main() -> None:
    for tool, words in TOOLS.items():
        name = tool.replace("_", "-")
        if importlib.util.find_spec(tool) is None:
            print(f"audit: {name} is not installed (pip install {name}); skipped")
            continue
        print(f"audit: {name}", flush=True)
        try:
            status = subprocess.run([sys.executable, "-m", tool, *words], timeout=300, check=False).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"audit: {name} did not finish: {error}")
            continue
        print(f"audit: {name} ended with status {status}; its findings are above")


if __name__ == "__main__":
    main()
