"""Shared by all tests: one thread setting, a private cache, hypothesis without deadlines."""

import hypothesis
import pytest
import torch

torch.set_num_threads(1)                              # tiny tensors: a second thread only gets in the way
hypothesis.settings.register_profile("regard", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("regard")


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Token stores built by a test do not meet those of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def same_chance():
    torch.manual_seed(0)
