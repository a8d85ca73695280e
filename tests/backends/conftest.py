"""Fixtures of the backend tests."""

from __future__ import annotations

from tests.engine.conftest import cuda as cuda
