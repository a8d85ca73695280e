"""Idle time of a stream as arithmetic."""

from __future__ import annotations

from legato.engine.idleness import Idleness


def test_wait_for_text_counts_up_to_the_limit_and_generated_audio_pays_it_back() -> None:
    idleness = Idleness()
    idleness.restart(10.0, 0.0)

    def update(now_s: float, audio_s: float, *, waits: bool) -> tuple[float, bool]:
        idleness.update(now_s, audio_s, waits_for_text=waits, may_generate=True, may_resume=True, limit_s=2.0)
        return round(idleness.seconds, 6), idleness.idle

    assert update(10.5, 0.0, waits=True) == (0.0, True)  # the time before was not idle
    assert update(11.0, 0.0, waits=True) == (0.5, True)
    assert update(11.1, 0.2, waits=False) == (0.4, False)
    assert update(14.0, 0.2, waits=False) == (0.4, False)  # busy, though it generated nothing
    assert update(14.1, 0.2, waits=True) == (0.4, True)
    assert update(19.0, 0.2, waits=True) == (2.0, True)
    assert update(19.0, 9.0, waits=False) == (0.0, False)


def test_pause_lasts_until_the_buffer_is_half_empty() -> None:
    idleness = Idleness()
    idleness.restart(0.0, 0.0)

    def update(now_s: float, audio_s: float, *, may: bool, resume: bool) -> tuple[float, bool]:
        idleness.update(now_s, audio_s, waits_for_text=False, may_generate=may, may_resume=resume, limit_s=9.0)
        return round(idleness.seconds, 6), idleness.idle

    assert update(1.0, 4.0, may=False, resume=False) == (0.0, True)
    assert update(1.08, 4.08, may=True, resume=False) == (0.08, True)  # the client took a frame
    assert update(1.16, 4.16, may=False, resume=False) == (0.16, True)
    assert update(3.0, 4.16, may=True, resume=True) == (0.0, False)
    idleness.update(5.0, 4.16, waits_for_text=False, may_generate=False, may_resume=False, limit_s=9.0)
    idleness.restart(6.0, 4.16)
    assert (idleness.seconds, idleness.idle) == (0.0, False)
