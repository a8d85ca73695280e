"""Fixtures for the tests of the backends."""

from __future__ import annotations

from tests.engine.conftest import cuda as cuda
