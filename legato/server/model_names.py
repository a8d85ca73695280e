"""Resolve the model and voice names in a request.

A voice name is looked up in this order: the model's built-in voices, uploaded voices, configured aliases, OpenAI's
voice names. OpenAI's names map to the built-in voices in checkpoint order, so that different names give different
voices as far as the model has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.aliases import folded_name
from legato.config.model import ModelConfig
from legato.config.server import OPENAI_VOICES, ServerConfig
from legato.errors import UnknownVoiceError
from legato.server.voices import UploadedVoice, VoiceFolder


@dataclass(frozen=True, slots=True)
class VoiceChoice:
    """A resolved voice: a built-in `speaker`, an uploaded voice, or neither (the model's default)."""

    speaker: str = ""
    uploaded: UploadedVoice | None = None


class ModelNames:
    """Name lookup for one model."""

    def __init__(self, config: ServerConfig, model: ModelConfig, folder: VoiceFolder) -> None:
        self._config = config
        self._model = model
        self._folder = folder

    @property
    def speakers(self) -> tuple[str, ...]:
        """The model's built-in voices."""
        return tuple(self._model.talker.speakers)

    def models(self) -> tuple[str, ...]:
        """The model's id, then its aliases."""
        own = self._config.model_id
        return (own, *(name for name, target in self._config.model_aliases.items() if target == own and name != own))

    @property
    def _clones(self) -> bool:
        return self._model.kind == "base"

    def uploaded(self) -> list[UploadedVoice]:
        """The uploaded voices that this model can speak: servers may share a folder, but only Base models clone."""
        return self._folder.voices() if self._clones else []

    def voice_names(self) -> list[str]:
        """Names of the voices that this model can speak: built-in, then uploaded."""
        return [*self.speakers, *(voice.name for voice in self.uploaded())]

    def voice_aliases(self) -> dict[str, str]:
        """Configured alias -> voice, for the aliases of voices that this model can speak."""
        found = ((alias, self._first_known(targets)) for alias, targets in self._config.voice_aliases.items())
        return {alias: target for alias, target in found if target is not None and self._find(alias) is None}

    def has_voice(self, name: str) -> bool:
        """Whether `name` is a voice of this model or a configured alias of one; the case does not matter."""
        return self._find(name.strip()) is not None or folded_name(name) in self.voice_aliases()

    def voice(self, name: str) -> VoiceChoice:
        """Resolve a voice name; "" and "default" select the model's default. Raises `UnknownVoiceError`."""
        name = name.strip()
        if not name or name.lower() == "default":
            return VoiceChoice()
        choice = self._find(name) or self._find_alias(folded_name(name))
        if choice is None:
            listed = ", ".join([*self.voice_names(), *self.voice_aliases()]) or "no voices"
            raise UnknownVoiceError(
                f"unknown voice {name[:80]!r}: available are {listed}, and OpenAI's voice names as aliases",
                field="voice",
            )
        return choice

    def _find(self, name: str) -> VoiceChoice | None:
        """A built-in or uploaded voice."""
        if name.lower() in self.speakers:
            return VoiceChoice(speaker=name.lower())
        uploaded = self._folder.find(name) if self._clones else None
        return VoiceChoice(uploaded=uploaded) if uploaded else None

    def _first_known(self, targets: tuple[str, ...]) -> str | None:
        """The first of the voices `targets` that this model has."""
        return next((target for target in targets if self._find(target) is not None), None)

    def _find_alias(self, name: str) -> VoiceChoice | None:
        """The voice of a configured alias, else of one of OpenAI's names. `name` is folded.

        An alias may name voices that only other models of the server have; for this model it then does not exist.
        """
        target = self._first_known(self._config.voice_aliases.get(name, ()))
        if target is not None:
            return self._find(target)
        if name not in OPENAI_VOICES:
            return None
        if self.speakers:
            return VoiceChoice(speaker=self.speakers[OPENAI_VOICES.index(name) % len(self.speakers)])
        return VoiceChoice()  # no built-in voices: the engine's error says what the model needs instead
