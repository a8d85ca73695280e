"""A model's name -> the folder of its checkpoint, fetched through `huggingface_hub` where need be.

Owns the list of official names and of the files that a checkpoint needs. Downloads go to the hub's own cache, which is
shared with other programs; only needed files are fetched. The hub library resumes a connection that breaks; when the
process is killed, finished files are kept and the one under way starts again. Reads no environment of its own: the
library honours `HF_HOME`, `HF_HUB_OFFLINE`, `HF_ENDPOINT` and `HF_TOKEN`. Imports no torch.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from legato.errors import CheckpointError, DownloadError
from legato.weights.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from huggingface_hub import HfApi

EMBEDDED = "embedded"
OFFICIAL_MODELS = tuple(
    f"Qwen/Qwen3-TTS-12Hz-{kind}"
    for kind in ("0.6B-Base", "0.6B-CustomVoice", "1.7B-Base", "1.7B-CustomVoice", "1.7B-VoiceDesign")
)
WEIGHTS = ("model.safetensors", "speech_tokenizer/model.safetensors")
NEEDED = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "speech_tokenizer/config.json",
    *WEIGHTS,
)
"""Each weights file may instead be an index and the parts that it names."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(model: str | Path, *, revision: str = "main", progress: ProgressCallback | None = None) -> Path:
    """The folder of `model`: "embedded", a folder, or a hub id such as ``Qwen/Qwen3-TTS-12Hz-0.6B-Base``.

    Official names may be shortened to ``0.6B-Base``. A folder wins over a hub id. Raises `CheckpointError` for what is
    neither, and `DownloadError`, saying what to fetch and where to put it, if the hub cannot be reached.
    """
    name = str(model)
    if name == EMBEDDED:
        return embedded_folder()
    folder = Path(model).expanduser()
    if name and folder.is_dir():
        return folder
    for official in OFFICIAL_MODELS:
        if name.lower() in (official.lower(), official.rpartition("12Hz-")[2].lower()):
            return fetch(official, revision=revision, progress=progress)
    if isinstance(model, str) and _HUB_ID.fullmatch(name):
        return fetch(name, revision=revision, progress=progress)
    raise CheckpointError(
        f"{name!r} is neither a folder nor a hub id; try {EMBEDDED!r}, the folder of a checkpoint, or one of "
        f"{', '.join(OFFICIAL_MODELS)}",
        field="model",
    )


def embedded_folder() -> Path:
    """The voice that ships with the package."""
    folder = Path(str(files("legato").joinpath("assets/voice")))
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"the embedded voice is not in {folder}: this installation is incomplete; install the package again",
            field="model",
        )
    return folder


def fetch(repository: str, *, revision: str = "main", progress: ProgressCallback | None = None) -> Path:
    """Download what a checkpoint needs from the hub, or find it in the hub's cache; returns its folder there.

    `progress` is told after every file; while a file comes, the hub library draws its own bar on standard error.
    """
    from huggingface_hub import HfApi, hf_hub_download

    api = HfApi()
    cached = _cached(repository, revision)
    if cached is not None:
        return cached
    sizes = _listed(api, repository, revision)
    wanted = _wanted(repository, sizes)
    done, total = 0, sum(sizes[name] for name in wanted)
    folder = Path()
    for name in wanted:
        try:
            path = Path(hf_hub_download(repository, name, revision=revision))
        except Exception as error:
            raise _cannot_fetch(repository, wanted, error) from error
        folder = path.parents[name.count("/")]
        done += sizes[name]
        if progress is not None:
            progress(Progress("download", name, done, total))
    return folder


def missing_files(folder: Path) -> list[str]:
    """Files that an official checkpoint needs and `folder` lacks; an index and all its parts stand for weights."""
    missing = [name for name in NEEDED if name not in WEIGHTS and not (folder / name).is_file()]
    for name in WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            continue
        if not index.is_file():
            missing.append(name)
            continue
        parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        missing += [part for part in sorted(parts) if not (index.parent / part).is_file()]
    return missing


def _cached(repository: str, revision: str) -> Path | None:
    """The snapshot in the hub's cache if it is complete: then nothing is asked of the network."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return None if missing_files(folder) else folder


def _listed(api: HfApi, repository: str, revision: str) -> dict[str, int]:
    """Files of the repository and their sizes in bytes."""
    try:
        info = api.model_info(repository, revision=revision, files_metadata=True)
    except Exception as error:
        raise _cannot_fetch(repository, list(NEEDED), error) from error
    return {each.rfilename: each.size or 0 for each in info.siblings or []}


def _wanted(repository: str, sizes: dict[str, int]) -> list[str]:
    """The needed files, configuration first; sharded weights come with their index and all parts."""
    wanted: list[str] = []
    absent: list[str] = []
    for name in NEEDED:
        stem = name.removesuffix(".safetensors")
        parts = [each for each in sorted(sizes) if re.fullmatch(rf"{re.escape(stem)}-\d+-of-\d+\.safetensors", each)]
        if name in sizes:
            wanted.append(name)
        elif f"{name}.index.json" in sizes and parts:
            wanted += [f"{name}.index.json", *parts]
        else:
            absent.append(name)
    if absent:
        raise CheckpointError(
            f"{repository} on the hub is not a checkpoint that this engine reads: it lacks {', '.join(absent)}",
            field="model",
        )
    return wanted


def _cannot_fetch(repository: str, wanted: list[str], error: Exception) -> DownloadError:
    return DownloadError(
        f"cannot fetch {repository} from the hub ({type(error).__name__}: {_first_line(error)}).\n"
        f"Needed are: {', '.join(wanted)}.\n"
        f"On a machine with a network run `hf download {repository} --local-dir CHECKPOINT`, copy the folder "
        "CHECKPOINT here, and give its path as the model; or copy that machine's hub cache to this one's (HF_HOME says "
        "where it is).",
        field="model",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no details"])[0]
