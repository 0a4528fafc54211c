"""The preparation of a device in a thread."""

import os
import subprocess
import sys


def test_a_device_is_prepared_in_a_thread_whether_or_not_there_is_a_gpu():
    code = """
import sys, torch
from regard.hardware import start_preparing
for name in ("cpu", "cuda"):
    assert name == "cuda" or "torch._dynamo" not in sys.modules
    start_preparing(torch.device(name)).join()
    assert "torch._dynamo" in sys.modules and torch.cuda.is_initialized() == (name == "cuda" and torch.cuda.is_available())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
