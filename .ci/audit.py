"""Known weaknesses of what regard depends on (pip-audit) and of its own source (bandit), where these are installed.

Reports and never fails: what it says is for a person to weigh. `pip install pip-audit bandit` brings both.
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
            print(f"audit: {name} is not installed (pip install {name}); left out")
            continue
        print(f"audit: {name}", flush=True)
        try:
            status = subprocess.run([sys.executable, "-m", tool, *words], timeout=300, check=False).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"audit: {name} did not finish: {error}")
            continue
        print(f"audit: {name} ended with status {status}; what it says is above")


if __name__ == "__main__":
    main()
