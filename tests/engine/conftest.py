"""One thread for the tiny models of these tests: on matrices of 32 columns a second one only waits for the first.

Without this the tests cost several times their work in spinning threads. It knows no test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Set for these tests, and taken back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
