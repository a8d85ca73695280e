"""Locate the checkpoint folder of a model, downloading it with `huggingface_hub` if necessary.

Only the files that a checkpoint needs are downloaded, into the hub's own cache, which other programs share. The hub
library resumes interrupted connections. After a killed download, complete files are kept and an incomplete one starts
again. The library reads `HF_HOME`, `HF_HUB_OFFLINE`, `HF_ENDPOINT` and `HF_TOKEN`. Does not import torch.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from legato.config.foreign_checkpoints import describe_file, describe_names
from legato.config.weight_index import weight_parts
from legato.errors import CheckpointError, DownloadError, InputError
from legato.weights.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from huggingface_hub import HfApi

EMBEDDED = "embedded"
OFFICIAL_MODELS = tuple(
    f"Qwen/Qwen3-TTS-12Hz-{kind}"
    for kind in ("0.6B-Base", "0.6B-CustomVoice", "1.7B-Base", "1.7B-CustomVoice", "1.7B-VoiceDesign")
)
WEIGHT_FILES = ("model.safetensors", "speech_tokenizer/model.safetensors")
REQUIRED_FILES = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "speech_tokenizer/config.json",
    *WEIGHT_FILES,
)
"""Files of a checkpoint. A weights file may be sharded instead: an index and the parts that it lists."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(model: str | Path, *, revision: str | None = None, progress: ProgressCallback | None = None) -> Path:
    """Return the checkpoint folder of `model`: "embedded", a folder, or a hub id (`Qwen/Qwen3-TTS-12Hz-0.6B-Base`).

    Official names may be shortened to `0.6B-Base`. An existing folder takes precedence over a hub id. `revision`: a
    branch, tag or commit of the hub repository, "main" by default; it may also follow the id (`0.6B-Base@v1`).
    `progress` is called after each downloaded file. Raises `CheckpointError` if `model` is none of these, `InputError`
    for a revision of a model that is not on the hub, and `DownloadError`, with instructions for a manual download, if
    the hub cannot be reached.
    """
    name = str(model)
    folder = Path(model).expanduser()
    if name == EMBEDDED or (name and folder.is_dir()):
        if revision is not None:
            raise InputError(f"{name!r} is not on the hub, so it has no revision {revision!r}", field="revision")
        return embedded_folder() if name == EMBEDDED else folder
    repository, at, named_revision = name.partition("@")
    if at and revision not in (None, named_revision):
        raise InputError(f"{name!r} and the revision {revision!r} contradict each other", field="revision")
    wanted = (named_revision if at else revision) or "main"
    for official in OFFICIAL_MODELS:
        if repository.lower() in (official.lower(), official.rpartition("12Hz-")[2].lower()):
            return fetch(official, revision=wanted, progress=progress)
    found = describe_file(folder)
    if found is not None:
        raise CheckpointError(f"{name!r} is no checkpoint: {found}", field="model")
    if isinstance(model, str) and _HUB_ID.fullmatch(repository):
        return fetch(repository, revision=wanted, progress=progress)
    raise CheckpointError(
        f"{name!r} is neither a folder nor a hub id; try {EMBEDDED!r}, the folder of a checkpoint, or one of "
        f"{', '.join(OFFICIAL_MODELS)}",
        field="model",
    )


def embedded_folder() -> Path:
    """The folder of the embedded voice, which is part of the package."""
    folder = Path(str(files("legato").joinpath("assets/voice")))
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"the embedded voice is missing from {folder}: the installation is incomplete, reinstall the package",
            field="model",
        )
    return folder


def fetch(repository: str, *, revision: str = "main", progress: ProgressCallback | None = None) -> Path:
    """Return the folder of a checkpoint in the hub's cache, downloading its required files if they are not cached.

    `progress` is called after each file. During a file, the hub library shows its own progress bar on standard error.
    """
    from huggingface_hub import HfApi, hf_hub_download

    api = HfApi()
    cached = _cached(repository, revision)
    if cached is not None:
        return cached
    sizes = _file_sizes(api, repository, revision)
    wanted = _files_to_download(repository, sizes)
    done, total = 0, sum(sizes[name] for name in wanted)
    folder = Path()
    for name in wanted:
        try:
            path = Path(hf_hub_download(repository, name, revision=revision))
        except Exception as error:
            raise _download_error(repository, wanted, error) from error
        folder = path.parents[name.count("/")]
        done += sizes[name]
        if progress is not None:
            progress(Progress("download", name, done, total))
    return folder


def missing_files(folder: Path) -> list[str]:
    """Required files that `folder` does not contain. An index with all its parts counts as a weights file."""
    missing = [name for name in REQUIRED_FILES if name not in WEIGHT_FILES and not (folder / name).is_file()]
    for name in WEIGHT_FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            continue
        if not index.is_file():
            missing.append(name)
            continue
        missing += [part for part in weight_parts(index) if not (index.parent / part).is_file()]
    return missing


def _cached(repository: str, revision: str) -> Path | None:
    """The snapshot in the hub's cache if it is complete; no network access."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return None if missing_files(folder) else folder


def _file_sizes(api: HfApi, repository: str, revision: str) -> dict[str, int]:
    """Sizes of the repository's files in bytes."""
    try:
        info = api.model_info(repository, revision=revision, files_metadata=True)
    except Exception as error:
        raise _download_error(repository, list(REQUIRED_FILES), error) from error
    return {each.rfilename: each.size or 0 for each in info.siblings or []}


def _files_to_download(repository: str, sizes: dict[str, int]) -> list[str]:
    """The required files, configuration first. Sharded weights: the index and all parts."""
    wanted: list[str] = []
    absent: list[str] = []
    for name in REQUIRED_FILES:
        stem = name.removesuffix(".safetensors")
        parts = [each for each in sorted(sizes) if re.fullmatch(rf"{re.escape(stem)}-\d+-of-\d+\.safetensors", each)]
        if name in sizes:
            wanted.append(name)
        elif f"{name}.index.json" in sizes and parts:
            wanted += [f"{name}.index.json", *parts]
        else:
            absent.append(name)
    if absent:
        found = describe_names(sorted(sizes))
        if found is not None:
            raise CheckpointError(f"{repository} is no checkpoint: {found}", field="model")
        raise CheckpointError(
            f"{repository} is not a Qwen3-TTS checkpoint: its repository lacks {', '.join(absent)}",
            field="model",
        )
    return wanted


def _download_error(repository: str, wanted: list[str], error: Exception) -> DownloadError:
    return DownloadError(
        f"cannot download {repository} from the hub ({type(error).__name__}: {_first_line(error)}).\n"
        f"Required files: {', '.join(wanted)}.\n"
        f"On a machine with network access, run `hf download {repository} --local-dir CHECKPOINT`, copy the folder "
        "CHECKPOINT to this machine, and pass its path as the model. Or copy the hub cache (HF_HOME).",
        field="model",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no details"])[0]
