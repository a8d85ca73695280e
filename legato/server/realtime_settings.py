"""`session.update` of the DashScope realtime dialect: every field checked, and used or refused by name. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from legato.audio.formats import AudioFormat
from legato.config.server import DASHSCOPE_VOICES
from legato.errors import UnknownVoiceError
from legato.server.fields import Fields
from legato.server.schemas import SpeechOptions
from legato.server.state import ServerState

FORMATS = ("pcm", "wav", "mp3", "opus")
RATES_HZ = (8000, 16000, 22050, 24000, 44100, 48000)
MODES = ("server_commit", "commit")
UNCHANGED_VOLUME = 50


@dataclass(frozen=True, slots=True)
class RealtimeSettings:
    """How the responses that follow are spoken and sent.

    `mode` "server_commit": text is spoken as it comes; "commit": when it is committed. `volume` 50 leaves the sound as
    it is, 100 doubles the samples (clipped, never wrapped), 0 is silence. The last three fields and `word_timestamps`
    are ours.
    """

    voice: str = ""
    mode: str = "server_commit"
    language_type: str = "Auto"
    kind: AudioFormat = AudioFormat.PCM
    sample_rate_hz: int = 24000
    speech_rate: float = 1.0
    volume: int = UNCHANGED_VOLUME
    instructions: str = ""
    word_timestamps: bool = False
    buffer_ms: int = 30_000
    lead_ms: int = 0
    start_ms: int = 0
    seed: int = 0
    max_new_tokens: int = 0

    @property
    def gain(self) -> float:
        """What samples are multiplied by."""
        return self.volume / UNCHANGED_VOLUME

    def as_json(self) -> dict[str, object]:
        """As the server tells them."""
        return {
            "voice": self.voice,
            "mode": self.mode,
            "language_type": self.language_type,
            "response_format": self.kind.value,
            "sample_rate": self.sample_rate_hz,
            "speech_rate": self.speech_rate,
            "volume": self.volume,
            "pitch_rate": 1.0,
            "instructions": self.instructions,
            "word_timestamps": self.word_timestamps,
        }

    def options(self, state: ServerState) -> SpeechOptions:
        """The same in the terms of the other routes."""
        return SpeechOptions(
            voice=known_voice(state, self.voice),
            language=self.language_type,
            instructions=self.instructions,
            speed=self.speech_rate,
            word_timestamps=self.word_timestamps,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
        )


def updated(old: RealtimeSettings, session: Fields, state: ServerState) -> RealtimeSettings:
    """`old` with what `session` names; `InputError` naming what is wrong, `UnsupportedError` what cannot be done."""
    normalises = state.tts.model.config.kind == "embedded"
    session.refuse("pitch_rate", "the pitch is the voice's own; leave it at 1", unless=(1, 1.0))
    session.refuse("bit_rate", "mp3 and opus are written at the encoder's own rate")
    session.refuse("speaker_embedding", "a voice is cloned from its recording; upload one and name it as voice")
    session.refuse("optimize_instructions", "instructions are used as they are", unless=(False,))
    session.refuse(
        "enable_tn",
        "this model always reads numbers and signs" if normalises else "this model reads the text as it is",
        unless=(normalises,),
    )
    return RealtimeSettings(
        voice=session.text("voice", old.voice, limit=200),
        mode=session.choice("mode", MODES, old.mode),
        language_type=session.text("language_type", old.language_type, limit=64),
        kind=AudioFormat(session.choice("response_format", FORMATS, old.kind.value)),
        sample_rate_hz=session.one_of("sample_rate", RATES_HZ, old.sample_rate_hz),
        speech_rate=session.number("speech_rate", old.speech_rate, low=0.5, high=2.0),
        volume=session.integer("volume", old.volume, low=0, high=100),
        instructions=session.text("instructions", old.instructions, limit=4000),
        word_timestamps=session.flag("word_timestamps", old.word_timestamps),
        buffer_ms=session.integer("buffer_ms", old.buffer_ms, low=320, high=600_000),
        lead_ms=session.integer("lead_ms", old.lead_ms, low=0, high=600_000),
        start_ms=session.integer("start_ms", old.start_ms, low=0, high=10_000),
        seed=session.integer("seed", old.seed, low=0, high=2**64 - 1),
        max_new_tokens=session.integer("max_new_tokens", old.max_new_tokens, low=0, high=1_000_000),
    )


def known_voice(state: ServerState, name: str) -> str:
    """`name`, or what one of the hosted service's voices stands for here: the model's own, in turn."""
    try:
        state.names.voice(name)
    except UnknownVoiceError:
        lower = name.strip().lower()
        if lower not in DASHSCOPE_VOICES:
            raise
        speakers = state.names.speakers
        return speakers[DASHSCOPE_VOICES.index(lower) % len(speakers)] if speakers else ""
    return name
