"""The server's half of `/v1/audio/speech/stream`: items of the session become messages and audio frames.

A `SpeechAnswers` owns, from connect to disconnect, which utterance and sentence each stream of the session is on the
wire, and the sound of the one that is being sent. It decides nothing about what is heard.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from legato.audio.formats import AudioFormat
from legato.flow import FinishReason, Packet
from legato.server.conversation import Wire
from legato.server.errors import ApiError, api_error
from legato.server.fields import to_json
from legato.server.records import timing_json
from legato.server.reports import interruption_json, words_json
from legato.server.speech_messages import PlayedThrough, SessionConfig
from legato.server.spoken import Spoken
from legato.server.state import ServerState
from legato.server.utterance_sound import UtteranceSound
from legato.session.events import (
    Acknowledged,
    Audio,
    Begins,
    Ends,
    Failed,
    Interrupted,
    Outgoing,
    Played,
    Stopped,
    UtteranceId,
)


@dataclass(slots=True)
class WireUtterance:
    """What one `input.done` closes, and how it is sent. `sentences` of it were begun, `sent` are over."""

    number: int
    config: SessionConfig
    kind: AudioFormat
    rate_hz: int
    sentences: int = 0
    sent: int = 0
    written: bool = False
    stopped: bool = False


@dataclass(slots=True)
class Place:
    """Which sentence of which utterance a stream of the session is."""

    utterance: WireUtterance
    sentence: int
    words_told: int = 0
    sounds: list[UtteranceSound] = field(default_factory=list)

    @property
    def numbers(self) -> dict[str, object]:
        """As messages carry them."""
        return {"utterance_index": self.utterance.number, "sentence_index": self.sentence}


class SpeechAnswers:
    """Everything that goes to the client of one connection."""

    def __init__(self, state: ServerState, wire: Wire, spoken: Spoken) -> None:
        self._state = state
        self._wire = wire
        self._spoken = spoken
        self._own_hz = state.tts.sample_rate_hz
        self._places: dict[UtteranceId, Place] = {}

    def place(self, stream: UtteranceId, utterance: WireUtterance) -> None:
        """`stream` speaks the next sentence of `utterance`, unless it is known already."""
        if stream not in self._places:
            self._places[stream] = Place(utterance, utterance.sentences)
            utterance.sentences += 1

    def acknowledged(self, message: PlayedThrough) -> tuple[Acknowledged, ...]:
        """What the client played, in the session's terms; nothing where that utterance is over."""
        for stream, place in self._places.items():
            if (place.utterance.number, place.sentence) == (message.utterance, message.sentence):
                return (Acknowledged(stream, round(message.samples * self._own_hz / place.utterance.rate_hz)),)
        return ()

    # --- items --------------------------------------------------------------------------------------------------------

    async def tell(self, item: Outgoing) -> None:
        """Send one item of the session."""
        match item:
            case Begins(utterance=stream):
                await self._begins(stream, self._places[stream])
            case Audio(utterance=stream, packet=packet):
                await self._audio(stream, self._places[stream], packet)
            case Ends(utterance=stream, reason=reason):
                await self._ends(stream, self._places[stream], reason)
            case Played(utterance=stream):
                self._places.pop(stream, None)
            case Stopped(utterances=reports):
                await self.say({"type": "input.cancelled", "utterances": [self._report(each) for each in reports]})
                for report in reports:
                    self._places.pop(report.utterance).utterance.stopped = True
            case Failed(utterance=stream, error=error):
                place = self._places.pop(stream)
                await self.error(api_error(error), place.numbers)
                await self._over(place.utterance)

    async def _begins(self, stream: UtteranceId, place: Place) -> None:
        utterance = place.utterance
        place.sounds = [UtteranceSound(utterance.kind, self._own_hz, utterance.rate_hz)]
        record = self._spoken.record(stream)
        await self.say(
            {
                "type": "audio.start",
                **place.numbers,
                "sentence_text": self._spoken.text(stream),
                "format": utterance.kind.value,
                "sample_rate": utterance.rate_hz,
                "request_id": record.id,
                "timing": [timing_json(timing) for timing in record.timings],
                "notes": list(record.notes),
            }
        )

    async def _audio(self, stream: UtteranceId, place: Place, packet: Packet) -> None:
        sound = place.sounds[0]
        before = sound.samples
        data = await self._state.bridge.in_thread(sound.take, packet)
        await self._words(stream, place)
        await self._bytes(place, data, before)

    async def _ends(self, stream: UtteranceId, place: Place, reason: FinishReason) -> None:
        sound = place.sounds[0]
        before = sound.samples
        data = await self._state.bridge.in_thread(sound.finish)
        await self._words(stream, place)
        await self._bytes(place, data, before)
        await self.say(
            {
                "type": "audio.done",
                **place.numbers,
                "samples": sound.samples,
                "total_bytes": sound.sent_bytes,
                "finish_reason": reason.value,
                "timing": [timing_json(timing) for timing in self._spoken.record(stream).timings],
                "error": False,
            }
        )
        place.sounds.clear()
        await self._over(place.utterance)

    async def _bytes(self, place: Place, data: bytes, first_sample: int) -> None:
        if not data:
            return
        if place.utterance.config.audio_transport == "binary":
            await self._wire.data(data)
            return
        await self.say(
            {
                "type": "audio.chunk",
                **place.numbers,
                "first_sample": first_sample,
                "samples": place.sounds[0].samples - first_sample,
                "audio_b64": base64.b64encode(data).decode(),
            }
        )

    async def _words(self, stream: UtteranceId, place: Place) -> None:
        """The words that became known since the last packet."""
        if not place.utterance.config.word_timestamps:
            return
        text = self._spoken.text(stream)
        fresh = self._spoken.words(stream)[place.words_told :]
        place.words_told += len(fresh)
        words = words_json(fresh, text, self._own_hz)
        if words:
            await self.say({"type": "audio.timestamps", **place.numbers, "words": words})

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def _over(self, utterance: WireUtterance) -> None:
        """One more sentence is over."""
        utterance.sent += 1
        await self.maybe_done(utterance)

    async def written(self, utterance: WireUtterance) -> None:
        """All text of `utterance` is there."""
        utterance.written = True
        await self.maybe_done(utterance)

    async def maybe_done(self, utterance: WireUtterance) -> None:
        """An utterance is over when all its text was there and all its sentences were sent or failed."""
        if utterance.written and utterance.sent == utterance.sentences and not utterance.stopped:
            await self.say(
                {
                    "type": "session.done",
                    "utterance_index": utterance.number,
                    "total_sentences": utterance.sentences,
                }
            )

    def _report(self, report: Interrupted) -> dict[str, object]:
        place = self._places[report.utterance]
        text, heard = self._spoken.text(report.utterance), self._spoken.heard(report)
        rate_hz = place.utterance.rate_hz
        return {
            **place.numbers,
            **interruption_json(report, heard, text, own_hz=self._own_hz, rate_hz=rate_hz),
        }

    async def error(self, error: ApiError, numbers: dict[str, object]) -> None:
        """An error, of an utterance where `numbers` says which."""
        message = {"type": "error", "code": error.code, "message": str(error), "field": error.param}
        await self.say({**message, **numbers})

    async def say(self, message: dict[str, object]) -> None:
        """One text frame."""
        await self._wire.text(to_json(message))
