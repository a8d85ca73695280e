"""Settings of the DashScope realtime protocol (`session.update`).

Every field is validated, and either applied or named as ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.audio.formats import AudioFormat
from legato.config.server import DASHSCOPE_VOICES
from legato.errors import UnknownVoiceError
from legato.server.fields import Fields
from legato.server.openai.schemas import SpeechOptions
from legato.server.state import ServerState

FORMATS = ("pcm", "wav", "mp3", "opus")
RATES_HZ = (8000, 16000, 22050, 24000, 44100, 48000)
MODES = ("server_commit", "commit")
UNITY_VOLUME = 50


@dataclass(frozen=True, slots=True)
class RealtimeSettings:
    """Settings of the responses that follow.

    `mode` "server_commit": text is generated as it arrives; "commit": when it is committed. `volume` 50 is unity gain,
    100 doubles the samples (clipped, never wrapped), 0 is silence. `word_timestamps` and the fields from `buffer_ms` on
    are extensions of Legato.
    """

    voice: str = ""
    mode: str = "server_commit"
    language_type: str = "Auto"
    audio_format: AudioFormat = AudioFormat.PCM
    sample_rate_hz: int = 24000
    speech_rate: float = 1.0
    volume: int = UNITY_VOLUME
    instructions: str = ""
    word_timestamps: bool = False
    buffer_ms: int = 30_000
    lead_ms: int = 0
    start_ms: int = 0
    seed: int = 0
    max_new_tokens: int = 0

    @property
    def gain(self) -> float:
        """Factor for the samples."""
        return self.volume / UNITY_VOLUME

    def as_json(self) -> dict[str, object]:
        """The settings as server events carry them."""
        return {
            "voice": self.voice,
            "mode": self.mode,
            "language_type": self.language_type,
            "response_format": self.audio_format.value,
            "sample_rate": self.sample_rate_hz,
            "speech_rate": self.speech_rate,
            "volume": self.volume,
            "pitch_rate": 1.0,
            "instructions": self.instructions,
            "word_timestamps": self.word_timestamps,
        }

    def options(self, state: ServerState) -> SpeechOptions:
        """The settings as speech options of the other routes."""
        return SpeechOptions(
            voice=known_voice(state, self.voice),
            language=self.language_type,
            instructions=self.instructions,
            speed=self.speech_rate,
            word_timestamps=self.word_timestamps,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
        )


def update_settings(old: RealtimeSettings, session: Fields, state: ServerState) -> RealtimeSettings:
    """`old` updated by the fields in `session`; `InputError` for the first field that is invalid.

    Fields that have no effect stay unread, so that the answer can name them.
    """
    normalizes_text = state.tts.model.config.kind == "embedded"
    session.refuse("speaker_embedding", "voices are cloned from a recording: upload one and pass its name as voice")
    # What has no effect here is listed as ignored, unless it has the value that the server uses anyway. An error would
    # drop the whole update, and the client would go on in another voice.
    for name, used in (
        ("pitch_rate", 1),
        ("bit_rate", None),
        ("optimize_instructions", False),
        ("enable_tn", normalizes_text),
    ):
        if session.values.get(name) == used:
            session.has(name)
    return RealtimeSettings(
        voice=session.text("voice", old.voice, limit=200),
        mode=session.choice("mode", MODES, old.mode),
        language_type=session.text("language_type", old.language_type, limit=64),
        audio_format=AudioFormat(session.choice("response_format", FORMATS, old.audio_format.value)),
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
    """`name` if the model has that voice. Voices of the hosted service are mapped to the model's voices round-robin."""
    try:
        state.names.voice(name)
    except UnknownVoiceError:
        lower = name.strip().lower()
        if lower not in DASHSCOPE_VOICES:
            raise
        speakers = state.names.speakers
        return speakers[DASHSCOPE_VOICES.index(lower) % len(speakers)] if speakers else ""
    return name
