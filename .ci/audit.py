"""Report known vulnerabilities of the dependencies (pip-audit) and weak spots of the source (bandit), where these are installed.

Never fails: the findings are for a person to judge. The last line about each tool says what was checked, and what was not:
without a network, or where the package index has no database of vulnerabilities, pip-audit checks nothing.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PIP_AUDIT = ["--requirement", str(LOCK), "--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
BANDIT = ["--recursive", str(ROOT / "src"), "--quiet", "--severity-level", "medium"]
MAX_SECONDS = 300


def run_tool(module: str, words: list[str]) -> subprocess.CompletedProcess[str] | str:
    """Return what a tool printed, or the reason why it did not run."""
    name = module.replace("_", "-")
    if importlib.util.find_spec(module) is None:
        return f"{name} is not installed (pip install {name}); nothing was checked"
    try:
        return subprocess.run(
            [sys.executable, "-m", module, *words], timeout=MAX_SECONDS, check=False, capture_output=True, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name} did not finish ({error}); nothing was checked"


def summarise_dependencies(done: subprocess.CompletedProcess[str]) -> str:
    """Print each known vulnerability; return how many packages were looked up."""
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return f"pip-audit reached no database ({reason[:200]}); nothing was checked"
    skipped = [package for package in found if "skip_reason" in package]
    weak = [package for package in found if package.get("vulns")]
    for package in weak:
        for one in package["vulns"]:
            fixed = ", ".join(one.get("fix_versions", [])) or "no version yet"
            print(f"  {package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    text = f"pip-audit looked up {len(found) - len(skipped)} of {len(found)} packages of {LOCK.name}: {len(weak)} with known"
    missing = f"; {len(skipped)} are not in its database, e.g. {skipped[0]['name']}" if skipped else ""
    return f"{text} vulnerabilities{missing}"


def summarise_source(done: subprocess.CompletedProcess[str]) -> str:
    """Print the findings; return how many there are."""
    print(done.stdout, end="")
    number = done.stdout.count(">> Issue:")
    return f"bandit looked at src: {number} findings of medium or high severity"


def main() -> None:
    for module, words, summarise in (("pip_audit", PIP_AUDIT, summarise_dependencies), ("bandit", BANDIT, summarise_source)):
        done = run_tool(module, words)
        print(f"audit: {done if isinstance(done, str) else summarise(done)}", flush=True)


if __name__ == "__main__":
    main()
