"""Options of `legato say` that describe the speech, passed to the command as one frozen value.

Ranges are checked where the values are used (`SamplingParams` and the engine), so the command line and the Python API
report the same errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.options import option_group
from legato.types import SAMPLING_FIELDS, SamplingOptions, TextLayout

if TYPE_CHECKING:
    from legato.api import CloneReference


class StreamArguments(SamplingOptions, total=False):
    """Keyword arguments of `Legato.stream`."""

    voice: str
    language: str
    instruct: str
    clone: CloneReference | None
    seed: int
    packet_frames: tuple[int, ...] | None
    max_frames: int
    layout: TextLayout | None


@dataclass(frozen=True, slots=True)
class SayOptions:
    """Values of the speech options. A sampling value of None means the checkpoint's default."""

    file: Path | None
    output: str
    play: bool
    voice: str
    language: str
    instruct: str
    clone: Path | None
    ref_text: str
    seed: int
    packet_frames: tuple[int, ...] | None
    max_frames: int
    layout: str
    greedy: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    predictor_temperature: float | None
    predictor_top_k: int | None
    predictor_top_p: float | None

    def __post_init__(self) -> None:
        if self.ref_text and self.clone is None:
            raise click.UsageError("--ref-text requires --clone: it is the transcript of that recording")
        if self.greedy and (self.temperature or self.predictor_temperature):
            raise click.UsageError("--greedy sets the temperatures to 0: do not combine it with --temperature")

    def stream_arguments(self) -> StreamArguments:
        """Convert to the keyword arguments of `Legato.stream`."""
        arguments = StreamArguments(
            voice=self.voice,
            language=self.language,
            instruct=self.instruct,
            clone=self._clone(),
            seed=self.seed,
            packet_frames=self.packet_frames,
            max_frames=self.max_frames,
            layout=None if self.layout == "auto" else TextLayout(self.layout),
        )
        if self.greedy:
            arguments["temperature"] = arguments["predictor_temperature"] = 0.0
        for name in SAMPLING_FIELDS:
            value = getattr(self, name)
            if value is not None:
                arguments[name] = value  # type: ignore[literal-required]
        return arguments

    def _clone(self) -> CloneReference | None:
        if self.clone is None:
            return None
        from legato.api import CloneReference

        return CloneReference(audio=self.clone, transcript=self.ref_text)


def _parse_frame_counts(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parse `1,2,4`."""
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 1,2,4") from None


_SPEECH_OPTIONS = (
    click.option(
        "--file",
        "-f",
        type=click.Path(path_type=Path, allow_dash=True),
        metavar="FILE",
        help="Read the text from FILE (UTF-8); - is standard input.",
    ),
    click.option(
        "--output",
        "-o",
        default="",
        metavar="FILE",
        help="Write audio to FILE; the suffix selects the format: .wav .flac .mp3 .opus .ogg .aac .pcm. -o - writes "
        "raw samples to standard output: mono int16, little-endian.  [default: out.wav, or no file with --play]",
    ),
    click.option("--play", is_flag=True, help='Play the audio as it is generated. Requires: pip install ".[play]".'),
    click.option("--voice", default="", help="Built-in voice, see `legato voices`.  [default: the first]"),
    click.option(
        "--language",
        default="auto",
        show_default=True,
        help="Language of the text: auto, or one that `legato voices` lists; case does not matter.",
    ),
    click.option(
        "--instruct",
        default="",
        help="Speaking style (CustomVoice), or the description of the voice (VoiceDesign).  [default: none]",
    ),
    click.option(
        "--clone",
        type=click.Path(path_type=Path),
        metavar="REF",
        help="Clone the voice of recording REF (Base models): 1 to 60 s, ideally 3 to 15 s.  [default: none]",
    ),
    click.option(
        "--ref-text",
        default="",
        help="Transcript of REF; makes the cloned voice sound much closer to the recording.  [default: none]",
    ),
    click.option(
        "--seed", default=0, show_default=True, help="Sampling seed; the same seed generates the same speech."
    ),
    click.option(
        "--packet-frames",
        callback=_parse_frame_counts,
        metavar="N,N,...",
        show_default="sizes for playback without a gap",
        help="Frames (80 ms) in the first, second, ... packet; the last number repeats.",
    ),
    click.option(
        "--max-frames",
        type=click.IntRange(min=0),
        default=0,
        show_default="a budget scaled to the text",
        help="Stop after this many frames of 80 ms (12.5 a second).",
    ),
    click.option(
        "--layout",
        type=click.Choice(("auto", *(layout.value for layout in TextLayout))),
        default="auto",
        show_default=True,
        help="Text before the first frame (whole) or one token per frame (streaming); auto uses the model's default.",
    ),
)
_SAMPLING_OPTIONS = (
    click.option("--greedy", is_flag=True, help="Greedy decoding: set both temperatures to 0."),
    click.option(
        "--temperature", type=float, help="Sampling temperature, 0 (greedy) to 10.  [default: the checkpoint's]"
    ),
    click.option(
        "--top-k", type=int, help="Sample from the k most likely codes; 0 disables.  [default: the checkpoint's]"
    ),
    click.option(
        "--top-p", type=float, help="Nucleus sampling with probability mass p; 1 disables.  [default: the checkpoint's]"
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        help="Above 1, codes already generated become less likely; 1 disables.  [default: the checkpoint's]",
    ),
    click.option(
        "--predictor-temperature",
        type=float,
        help="Temperature of the code predictor (codebooks 1 to 15).  [default: the checkpoint's]",
    ),
    click.option("--predictor-top-k", type=int, help="Top-k of the code predictor.  [default: the checkpoint's]"),
    click.option("--predictor-top-p", type=float, help="Top-p of the code predictor.  [default: the checkpoint's]"),
)

say_options = option_group("options", SayOptions, _SPEECH_OPTIONS + _SAMPLING_OPTIONS)
"""Adds all options above; the command receives them as `options`."""
