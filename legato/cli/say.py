"""`legato say`: synthesize one text, and write or play the audio as it is generated.

Opens the outputs of one run (file, pipe, sound device) and closes them even if the run is interrupted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.loading import load_engine
from legato.cli.meter import SpeechMeter, early_stop_warning, finish_line
from legato.cli.model_options import (
    EngineOptions,
    ModelOptions,
    cuda_graphs_option,
    deterministic_option,
    model_options,
)
from legato.cli.say_options import SayOptions, say_options
from legato.cli.terminal import StatusLine, is_verbose, note
from legato.cli.text_source import choose_text
from legato.errors import InputError
from legato.types import FinishReason, Packet

if TYPE_CHECKING:
    from legato.api import Legato, Stream
    from legato.audio.play import Player
    from legato.audio.writer import PacketWriter

DEFAULT_OUTPUT = "out.wav"

EPILOG = """\b
Examples:
  legato say "Hello from Legato."                        writes out.wav
  legato say "A tidy file." -o tidy.flac --seed 7
  legato say -f story.txt -o story.mp3
  llm "Tell a story" | legato say --play                 speaks while the LLM is still generating the text
  legato say "Raw samples." -o - | aplay -r 24000 -f S16_LE -c 1
  legato say "Slowly." -m Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice --voice ryan --instruct "Speak very slowly."
  legato say "A new voice." -m Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign --instruct "A deep, warm old man."
  legato say "My own voice." -m Qwen/Qwen3-TTS-12Hz-0.6B-Base --clone me.wav --ref-text "What I say in it."

\b
Options by kind of model:
  embedded      English; --voice; speech ends with the text, so sampling options have little effect
  CustomVoice   --voice, --language; --instruct with the 1.7B model
  VoiceDesign   --instruct (description of the voice), --language
  Base          --clone, preferably with --ref-text; --language

Standard error shows the duration of the audio, the real-time factor (RTF, processing time per second of audio) and the
time to first audio. --verbose adds the finish reason, the frame limit and the latency of each stage. Only audio is
written to standard output.
"""


@click.command(epilog=EPILOG, short_help="Synthesize text from an argument, a file, or a pipe.")
@click.argument("text", nargs=-1)
@say_options
@model_options()
@deterministic_option
@cuda_graphs_option
def say(
    text: tuple[str, ...], options: SayOptions, model_options: ModelOptions, deterministic: bool, cuda_graphs: bool
) -> int:
    """Synthesize TEXT, the text of --file, or standard input as it arrives (no TEXT, or "-").

    Long text is split at sentence ends and spoken by one voice without gaps.
    """
    output = choose_output(options.output, options.play)
    source = choose_text(text, options.file)
    if source == "":
        raise InputError("the text is empty: give at least one word", field="text")
    with load_engine(model_options, EngineOptions(deterministic=deterministic, cuda_graphs=cuda_graphs)) as tts:
        return speak(tts, source, options, output)


def choose_output(output: str, play: bool) -> str:
    """The output: a path, "-" for standard output, or "" for playback only. Checked before the model is loaded."""
    chosen = output or ("" if play else DEFAULT_OUTPUT)
    if chosen == "-" and sys.stdout.isatty():
        raise click.UsageError("standard output is a terminal: redirect it to a file or a program, or use -o FILE")
    if chosen and chosen != "-":
        from legato.audio.formats import format_from_path

        format_from_path(Path(chosen))
        folder = Path(chosen).absolute().parent
        if not folder.is_dir():
            raise InputError(f"folder {str(folder)!r} does not exist", field="output")
    if play:
        from legato.audio.play import device_name

        device_name()
    return chosen


def speak(tts: Legato, source: str | Iterator[str], options: SayOptions, output: str) -> int:
    """Stream one text to the outputs and print a summary. Returns the exit code."""
    meter, status = SpeechMeter(time.monotonic()), StatusLine()
    stream = tts.stream(source, **options.stream_arguments())
    for line in stream.notes:
        note(line)
    try:
        with ExitStack() as stack:
            reason = write_packets(stream, AudioOutputs(stack, output, options.play), meter, status)
    except KeyboardInterrupt:
        stream.cancel()
        status.clear()
        note(f"cancelled: {meter.summary(text_wait_s(stream))}")
        raise
    finally:
        status.clear()
    print_summary(stream, meter, reason, options, output)
    return 0


class AudioOutputs:
    """The outputs of one stream. They are opened with the first packet, so an earlier error keeps an existing file.

    The player is entered last and therefore exited first, so that playback stops immediately on an error.
    """

    def __init__(self, stack: ExitStack, output: str, play: bool) -> None:
        self._stack = stack
        self._output = output
        self._play = play
        self._open: list[PacketWriter | Player] = []

    def write(self, packet: Packet) -> None:
        """Write the packet to every output."""
        if not self._open:
            self._enter(packet.sample_rate_hz)
        for output in self._open:
            output.write(packet)

    def _enter(self, sample_rate_hz: int) -> None:
        from legato.audio.formats import AudioFormat
        from legato.audio.writer import PacketWriter, open_file

        if self._output == "-":
            stdout = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
            writer = PacketWriter(stdout, AudioFormat.PCM, sample_rate_hz, patchable=False)
            self._open.append(self._stack.enter_context(writer))
        elif self._output:
            self._open.append(self._stack.enter_context(open_file(Path(self._output), sample_rate_hz)))
        if self._play:
            from legato.audio.play import open_player

            self._open.append(self._stack.enter_context(open_player(sample_rate_hz)))


def write_packets(stream: Stream, outputs: AudioOutputs, meter: SpeechMeter, status: StatusLine) -> FinishReason:
    """Write every packet as it arrives; returns the finish reason."""
    reason = FinishReason.FAILED
    for packet in stream:
        outputs.write(packet)
        now_s = time.monotonic()
        meter.add(packet, now_s)
        status.show(meter.summary(text_wait_s(stream)), now_s)
        reason = packet.finish_reason or reason
    return reason


def text_wait_s(stream: Stream) -> float:
    """Seconds in which the engine waited for input text."""
    return stream.timing.stages_s().get("input wait", 0.0) + stream.timing.text_stall_s


def print_summary(stream: Stream, meter: SpeechMeter, reason: FinishReason, options: SayOptions, output: str) -> None:
    """Print the summary, with --verbose the details, a warning if the speech stopped early, and the output file."""
    note(meter.summary(text_wait_s(stream)))
    limit = f"{options.max_frames} frames (--max-frames)" if options.max_frames else default_limit(stream)
    if is_verbose():
        note(finish_line(reason, meter.frames, limit))
        stages = stream.timing.stages_s()
        if stages:
            listed = ", ".join(f"{name} {1000 * spent:.0f} ms" for name, spent in stages.items())
            note(f"time to first audio: {listed}")
    warning = early_stop_warning(reason, meter.frames, limit)
    if warning is not None:
        note(warning)
    if output not in ("", "-"):
        note(f"wrote {output}")


def default_limit(stream: Stream) -> str:
    """Description of the frame limit if --max-frames was not given."""
    budget = stream.budget_frames
    return f"{budget} frames (scaled to the text; --max-frames overrides it)" if budget else "the end of the text"
