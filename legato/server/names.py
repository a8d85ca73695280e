"""Which names a client may use for the model and its voices. Owns no state of its own; reads the kept voices.

Order for a voice: one that the model has, one that was uploaded, a configured alias, one of OpenAI's names. OpenAI's
names stand for the model's voices in turn, in the checkpoint's order, so that a stock client hears different voices
where there are different ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.model import ModelConfig
from legato.config.server import OPENAI_VOICES, ServerConfig
from legato.errors import UnknownVoiceError
from legato.server.errors import ApiError
from legato.server.voices import KeptVoice, VoiceFolder


@dataclass(frozen=True, slots=True)
class VoiceChoice:
    """What a voice's name came to: a built-in `speaker` ("": the model has none), or a kept recording."""

    speaker: str = ""
    kept: tuple[KeptVoice, ...] = ()


class Names:
    """The names of one server."""

    def __init__(self, config: ServerConfig, model: ModelConfig, folder: VoiceFolder) -> None:
        self._config = config
        self._model = model
        self._folder = folder

    @property
    def speakers(self) -> tuple[str, ...]:
        """The model's own voices."""
        return tuple(self._model.talker.speakers)

    def models(self) -> tuple[str, ...]:
        """All names of the model, its own first."""
        return (self._config.model_id, *(name for name in self._config.model_aliases if name != self._config.model_id))

    def check_model(self, name: str) -> None:
        """404 for a model that is not the one loaded. "" is the one loaded."""
        if name and name not in self.models():
            raise ApiError(
                404,
                "model_not_found",
                f"there is no model {name!r} here; this server speaks with {self._config.model_id!r} "
                f"(also called {', '.join(self.models()[1:])})",
                param="model",
            )

    def voice(self, name: str) -> VoiceChoice:
        """What `name` stands for; "" leaves the choice to the model. `UnknownVoiceError` with the names there are."""
        asked = name.strip()
        lower = asked.lower()
        if not asked or lower == "default":
            return VoiceChoice()
        return self._own(asked) or self._alias(lower) or self._refuse(asked)

    def _own(self, name: str) -> VoiceChoice | None:
        if name.lower() in self.speakers:
            return VoiceChoice(speaker=name.lower())
        kept = self._folder.find(name)
        return VoiceChoice(kept=(kept,)) if kept else None

    def _alias(self, name: str) -> VoiceChoice | None:
        if name in self._config.voice_aliases:
            target = self._config.voice_aliases[name]
            choice = self._own(target)
            if choice is None:
                raise UnknownVoiceError(
                    f"voice {name!r} is configured to be {target!r}, which is not here", field="voice"
                )
            return choice
        if name not in OPENAI_VOICES:
            return None
        if self.speakers:
            return VoiceChoice(speaker=self.speakers[OPENAI_VOICES.index(name) % len(self.speakers)])
        return VoiceChoice()  # a model without voices: its own refusal says what it needs instead

    def _refuse(self, name: str) -> VoiceChoice:
        names = [*self.speakers, *(kept.name for kept in self._folder.kept())]
        raise UnknownVoiceError(
            f"there is no voice {name!r}; there are {', '.join(names) or 'none'}, and OpenAI's names", field="voice"
        )
