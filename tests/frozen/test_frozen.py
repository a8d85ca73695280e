"""What Legato does is what was recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import TinyCheckpoint
from tests.frozen.recordings import FOLDER, RECORDINGS, RENEW, agree, difference, recorded, taken
from tests.frozen.subjects import Subjects, subjects


@pytest.fixture(scope="module")
def found(tiny_checkpoint: TinyCheckpoint) -> Iterator[Subjects]:
    with subjects(tiny_checkpoint) as made:
        yield made


@pytest.mark.parametrize("name", RECORDINGS)
def test_it_is_as_recorded(found: Subjects, name: str) -> None:
    old, new = recorded(name), taken(name, found)
    assert agree(old, new), f"{name} differs; {RENEW}\n{difference(old, new)}"


def test_every_file_belongs_to_a_recording() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in RECORDINGS}
