"""Other names of models and voices: defaults for names that stock clients send, and files of more (`--aliases`).

An alias maps to one or several targets; the first target that exists counts. Holds no state.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from legato.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Model names of OpenAI's speech API, which stock clients send. Dated forms are known, too (`undated_model`)."""
DEFAULT_MODEL_ALIASES: Mapping[str, str] = dict.fromkeys((*OPENAI_MODELS, "kokoro"), "")
"""Names that select the default model: OpenAI's, and the one that clients of Kokoro servers send."""
ANY_MODEL = "*"
"""As an alias: every model name that is unknown."""
_DATED = re.compile(rf"({'|'.join(map(re.escape, OPENAI_MODELS))})-(\d{{4}}|\d{{4}}-\d{{2}}-\d{{2}})", re.ASCII)
_MAX_NAME = 256
_FIELD = "aliases"


@dataclass(frozen=True, slots=True)
class Aliases:
    """The content of a file of aliases. `models`: alias -> model id; `voices`: folded alias -> voices, in order."""

    models: Mapping[str, str] = field(default_factory=dict)
    voices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def undated_model(name: str) -> str:
    """OpenAI's model name without its date (`tts-1-1106`, `gpt-4o-mini-tts-2025-12-15`); other names unchanged."""
    match = _DATED.fullmatch(name)
    return match[1] if match else name


def folded_name(name: str) -> str:
    """The form in which voice names are compared: composed (NFC), without case and surrounding spaces."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name.strip()).casefold())


def voice_alias_table(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """A table of voice aliases from (alias, voice) pairs. The voices of a repeated alias are tried in order."""
    table: dict[str, tuple[str, ...]] = {}
    for name, voice in pairs:
        table[folded_name(name)] = (*table.get(folded_name(name), ()), voice)
    return table


def read_aliases(path: Path) -> Aliases:
    """Read a TOML file with the tables `models` and `voices`. `InputError` names the entry at fault.

    ```toml
    [models]
    "my-tts" = "embedded"           # alias = id of a loaded model

    [voices]
    narrator = "heart"              # alias = voice
    host = ["michael", "ryan"]      # the first of these voices that the model has
    ```
    """
    where = f"the file of aliases {str(path)!r}"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror or error}", field=_FIELD) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {error}", field=_FIELD) from error
    unknown = sorted(content.keys() - {"models", "voices"})
    if unknown:
        raise InputError(f"{where} has the unknown table {unknown[0]!r}: use [models] and [voices]", field=_FIELD)
    models = {name: _targets(where, "models", name, target) for name, target in _table(where, content, "models")}
    for name, targets in models.items():
        if len(targets) != 1:
            raise InputError(f"{where}: models.{name} must be one model id, not a list", field=_FIELD)
    voices = [
        (name, voice)
        for name, target in _table(where, content, "voices")
        for voice in _targets(where, "voices", name, target)
    ]
    return Aliases({name: targets[0] for name, targets in models.items()}, voice_alias_table(voices))


def _table(where: str, content: Mapping[str, object], name: str) -> Iterable[tuple[str, object]]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{where}: {name} must be a table ([{name}]), not {type(table).__name__}", field=_FIELD)
    return table.items()


def _targets(where: str, table: str, name: str, value: object) -> tuple[str, ...]:
    entry = f"{table}.{name[:80]}"
    if not name.strip() or len(name) > _MAX_NAME:
        raise InputError(f"{where}: an alias in [{table}] must have 1 to {_MAX_NAME} characters", field=_FIELD)
    targets = value if isinstance(value, list) else [value]
    names = tuple(each.strip() for each in targets if isinstance(each, str) and each.strip())
    if not names or len(names) != len(targets):
        raise InputError(f"{where}: {entry} must be a name, or a list of names, not {value!r:.80}", field=_FIELD)
    return names
