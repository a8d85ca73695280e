"""Legato's behaviour equals the recordings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import TinyCheckpoint
from tests.frozen.recordings import FOLDER, HOW_TO_UPDATE, RECORDINGS, agree, difference, record_now, recorded
from tests.frozen.subjects import Subjects, subjects


@pytest.fixture(scope="module")
def found(tiny_checkpoint: TinyCheckpoint) -> Iterator[Subjects]:
    with subjects(tiny_checkpoint) as made:
        yield made


@pytest.mark.parametrize("name", RECORDINGS)
def test_behaviour_equals_the_recording(found: Subjects, name: str) -> None:
    old, new = recorded(name), record_now(name, found)
    assert agree(old, new), f"{name} differs; {HOW_TO_UPDATE}\n{difference(old, new)}"


def test_every_file_belongs_to_a_recording() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in RECORDINGS}
