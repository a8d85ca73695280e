"""The options of `legato say` that concern the speech itself, as one frozen value.

Owns their wording. Ranges are checked where the values are used (`flow.Sampling` and the engine), so that the command
line and Python refuse the same things in the same words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from legato.flow import TextLayout

if TYPE_CHECKING:
    from legato.api import CloneReference

SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "predictor_temperature",
    "predictor_top_k",
    "predictor_top_p",
)


class StreamArguments(TypedDict, total=False):
    """What `Legato.stream` takes beside the text."""

    voice: str
    language: str
    instruct: str
    clone: CloneReference | None
    seed: int
    packet_frames: tuple[int, ...]
    max_frames: int
    layout: TextLayout | None
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float


@dataclass(frozen=True, slots=True)
class SayOptions:
    """What the user asked for; a sampling value that was not given is None and leaves the checkpoint's own."""

    file: Path | None
    output: str
    play: bool
    voice: str
    language: str
    instruct: str
    clone: Path | None
    ref_text: str
    seed: int
    packet_frames: tuple[int, ...]
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
            raise click.UsageError("--ref-text is the transcript of the recording given with --clone")
        if self.greedy and (self.temperature or self.predictor_temperature):
            raise click.UsageError("--greedy is temperature 0; do not give another --temperature with it")

    def stream_arguments(self) -> StreamArguments:
        """The keyword arguments of `Legato.stream`."""
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
        for name in SAMPLING:
            value = getattr(self, name)
            if value is not None:
                arguments[name] = value  # type: ignore[literal-required]
        return arguments

    def _clone(self) -> CloneReference | None:
        if self.clone is None:
            return None
        from legato.api import CloneReference

        return CloneReference(audio=self.clone, transcript=self.ref_text)


def _frame_counts(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    """`1,2,4` -> (1, 2, 4)."""
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 1,2,4") from None


_SPEECH_OPTIONS = (
    click.option("--file", "-f", type=click.Path(path_type=Path, allow_dash=True), help="Read the text from a file."),
    click.option(
        "--output",
        "-o",
        default="",
        metavar="FILE",
        help="Write FILE; its ending says how: .wav .flac .mp3 .opus .ogg .aac .pcm. With -o - samples go to standard "
        "output: mono, signed 16 bit, little-endian, no header.  [default: out.wav, or nothing with --play]",
    ),
    click.option("--play", is_flag=True, help='Play it while it is made. Needs: pip install "legato-tts[play]".'),
    click.option("--voice", default="", help="A built-in voice; `legato voices` lists them.  [default: the first]"),
    click.option(
        "--language",
        default="auto",
        show_default=True,
        help="auto, or one of the model's languages (English, Chinese, ...), in any case.",
    ),
    click.option("--instruct", default="", help="How to speak, or with a VoiceDesign model which voice to make."),
    click.option(
        "--clone",
        type=click.Path(path_type=Path),
        metavar="REF",
        help="A recording of the voice to speak in (Base models): 1 to 60 s, best 3 to 15 s, any common format.",
    ),
    click.option("--ref-text", default="", help="What is said in REF, word by word: brings the clone much closer."),
    click.option("--seed", default=0, show_default=True, help="The same seed gives the same speech."),
    click.option(
        "--packet-frames",
        callback=_frame_counts,
        metavar="N,N,...",
        default="1,2,4",
        show_default=True,
        help="Frames (80 ms) of the first, second, ... packet; the last number repeats.",
    ),
    click.option(
        "--max-frames",
        type=click.IntRange(min=0),
        default=0,
        show_default="a budget scaled to the text",
        help="Stop after so many frames of 80 ms (12.5 a second).",
    ),
    click.option(
        "--layout",
        type=click.Choice(("auto", *(layout.value for layout in TextLayout))),
        default="auto",
        show_default=True,
        help="Text before speech (whole) or alongside (streaming); auto: as the model was made for.",
    ),
)
_SAMPLING_OPTIONS = (
    click.option("--greedy", is_flag=True, help="Always the likeliest code: both temperatures 0."),
    click.option("--temperature", type=float, help="0 is greedy, 0.9 usual; 0 to 10.  [default: the checkpoint's]"),
    click.option(
        "--top-k", type=int, help="Draw from the k likeliest codes; 0: from all.  [default: the checkpoint's]"
    ),
    click.option("--top-p", type=float, help="Draw from the likeliest codes that make up p; 1: from all."),
    click.option("--repetition-penalty", type=float, help="Above 1: codes already spoken become less likely."),
    click.option("--predictor-temperature", type=float, help="The same for the fine detail (codebooks 1 to 15)."),
    click.option("--predictor-top-k", type=int, help="The same for the fine detail."),
    click.option("--predictor-top-p", type=float, help="The same for the fine detail."),
)


def say_options(function: Callable[..., object]) -> Callable[..., object]:
    """Add the options above; the command gets them as one value, `options`."""
    names = [field.name for field in fields(SayOptions)]

    @functools.wraps(function)
    def with_options(**values: object) -> object:
        taken = {name: values.pop(name) for name in names}
        return function(options=SayOptions(**taken), **values)  # type: ignore[arg-type]

    decorated: Callable[..., object] = with_options
    for option in reversed(_SPEECH_OPTIONS + _SAMPLING_OPTIONS):
        decorated = option(decorated)
    return decorated
