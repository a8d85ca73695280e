"""Status lines on terminals and in log files, tables in pipes, and the device check."""

from __future__ import annotations

import pytest

from legato.cli.loading import check_device
from legato.cli.terminal import StatusLine, print_table
from legato.errors import UnsupportedError


def test_status_line_is_updated_in_place_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    status = StatusLine()
    status.show("one", 0.0)
    status.show("two", 0.1)
    status.clear()
    status.clear()
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 0
    assert captured.err.split("\r\x1b[2K") == ["", "one", "two", ""]
    assert captured.out == ""


def test_status_line_is_printed_periodically_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    status = StatusLine(every_s=2.0)
    for tenth in range(50):
        status.show(f"at {tenth / 10}", tenth / 10)
    status.clear()
    assert capsys.readouterr().err.splitlines() == ["at 0.0", "at 2.0", "at 4.0"]


def test_table_row_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "value"), [("x" * 90, "[bold]y" * 30), ("好", "")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "[bold]y[bold]y" in lines[1]
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize("device", ["cuda:99", "gpu", ""])
def test_unavailable_device_is_refused(device: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_device(device)
    assert caught.value.field == "device"
    check_device("cpu")
