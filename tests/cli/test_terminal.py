"""Lines on standard error: rewritten on a terminal, spaced out elsewhere; tables keep a row on a line in a pipe."""

from __future__ import annotations

import pytest

from legato.cli.model_options import check_device
from legato.cli.terminal import StatusLine, print_table
from legato.errors import UnsupportedError


def test_a_terminal_sees_one_line_rewritten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    status = StatusLine()
    status.show("one", 0.0)
    status.show("two", 0.1)
    status.clear()
    status.clear()
    told = capsys.readouterr()
    assert told.err.count("\n") == 0
    assert told.err.split("\r\x1b[2K") == ["", "one", "two", ""]
    assert told.out == ""


def test_a_log_sees_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    status = StatusLine(every_s=2.0)
    for tenth in range(50):
        status.show(f"at {tenth / 10}", tenth / 10)
    status.clear()
    assert capsys.readouterr().err.splitlines() == ["at 0.0", "at 2.0", "at 4.0"]


def test_a_row_is_a_line_whatever_its_width(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "value"), [("x" * 90, "[bold]y" * 30), ("好", "")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "[bold]y[bold]y" in lines[1]
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize("device", ["cuda:99", "gpu", ""])
def test_a_device_that_is_not_here_is_refused(device: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_device(device)
    assert caught.value.field == "device"
    check_device("cpu")
