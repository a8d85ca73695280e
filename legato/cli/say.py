"""`legato say`: text in, speech out, packet by packet.

Owns the outputs of one run (file, pipe, sound device) and closes them properly however it ends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.meter import UNEASY, SpeechMeter, ending_line
from legato.cli.model_options import (
    ModelChoice,
    compute_options,
    deterministic_option,
    graphs_option,
    load_chosen,
    model_option,
    quant_option,
)
from legato.cli.say_options import SayOptions, say_options
from legato.cli.terminal import StatusLine, note
from legato.cli.text_source import choose_text
from legato.errors import InputError
from legato.flow import FinishReason, Packet

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
  llm "Tell a story" | legato say --play                 speaks while the text is written
  legato say "Raw samples." -o - | aplay -r 24000 -f S16_LE -c 1
  legato say "Slowly." -m Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice --voice ryan --instruct "Speak very slowly."
  legato say "A new voice." -m Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign --instruct "A deep, warm old man."
  legato say "My own voice." -m Qwen/Qwen3-TTS-12Hz-0.6B-Base --clone me.wav --ref-text "What I say in it."

\b
What the kinds of model take:
  embedded      English; --voice; its speech ends with its text, so --temperature and the like shape it little
  CustomVoice   --voice, --language; --instruct with the 1.7B model
  VoiceDesign   --instruct (the voice, described), --language
  Base          --clone, best with --ref-text; --language

On standard error: packets, seconds of audio, real-time factor (seconds of work for each second of audio) and the first
packet's delay while it speaks; at the end why it ended and which limit held. Standard output holds sound alone.
"""


@click.command(epilog=EPILOG, short_help="Speak text: an argument, a file, or standard input as it arrives.")
@click.argument("text", nargs=-1)
@say_options
@model_option
@compute_options
@quant_option
@deterministic_option
@graphs_option
def say(
    text: tuple[str, ...],
    options: SayOptions,
    model: str,
    device: str,
    dtype: str,
    codec_dtype: str,
    threads: int | None,
    quant: str,
    deterministic: bool,
    graphs: bool,
) -> int:
    """Speak TEXT, or the text of --file, or what comes through standard input (also TEXT "-") as it arrives.

    Long text is cut at sentence ends and spoken as one voice without gaps.
    """
    outputs = choose_outputs(options.output, options.play)
    source = choose_text(text, options.file)
    if source == "":
        raise InputError("the text is empty: give at least one word", field="text")
    how = ModelChoice(model, device, dtype, codec_dtype, threads or 0, quant=quant, deterministic=deterministic)
    with load_chosen(replace(how, graphs=graphs)) as tts:
        return speak(tts, source, options, outputs)


def choose_outputs(output: str, play: bool) -> str:
    """Where the sound goes: a path, "-", or "" for the device alone. Refuses what cannot work before anything loads."""
    chosen = output or ("" if play else DEFAULT_OUTPUT)
    if chosen == "-" and sys.stdout.isatty():
        raise click.UsageError("standard output is a terminal; send it to a file or a program, or use -o FILE")
    if chosen and chosen != "-":
        from legato.audio.formats import format_of_path

        format_of_path(Path(chosen))
        if not Path(chosen).absolute().parent.is_dir():
            raise InputError(f"there is no folder {str(Path(chosen).absolute().parent)!r}", field="output")
    if play:
        from legato.audio.play import device_name

        device_name()
    return chosen


def speak(tts: Legato, source: str | Iterator[str], options: SayOptions, output: str) -> int:
    """Stream one text to the outputs and tell how it goes; returns the exit code."""
    meter, status = SpeechMeter(time.monotonic()), StatusLine()
    stream = tts.stream(source, **options.stream_arguments())
    for remark in stream.notes:
        note(remark)
    try:
        with ExitStack() as outputs:
            reason = pump(stream, Sinks(outputs, output, options.play), meter, status)
    except KeyboardInterrupt:
        stream.cancel()
        status.clear()
        note(f"cancelled after {meter.line()}")
        raise
    finally:
        status.clear()
    tell_end(stream, meter, reason, options, output)
    return 0


class Sinks:
    """The outputs of one stream, opened with its first packet: what fails before leaves an older file as it was.

    The player is entered last and so left first: on an error it falls silent at once.
    """

    def __init__(self, stack: ExitStack, output: str, play: bool) -> None:
        self._stack = stack
        self._output = output
        self._play = play
        self._open: list[PacketWriter | Player] = []

    def write(self, packet: Packet) -> None:
        """Hand the packet to every output."""
        if not self._open:
            self._enter(packet.sample_rate_hz)
        for sink in self._open:
            sink.write(packet)

    def _enter(self, sample_rate_hz: int) -> None:
        from legato.audio.formats import AudioFormat
        from legato.audio.writer import PacketWriter, open_file

        if self._output == "-":
            own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
            self._open.append(
                self._stack.enter_context(PacketWriter(own, AudioFormat.PCM, sample_rate_hz, patchable=False))
            )
        elif self._output:
            self._open.append(self._stack.enter_context(open_file(Path(self._output), sample_rate_hz)))
        if self._play:
            from legato.audio.play import open_player

            self._open.append(self._stack.enter_context(open_player(sample_rate_hz)))


def pump(stream: Stream, sinks: Sinks, meter: SpeechMeter, status: StatusLine) -> FinishReason:
    """Hand every packet on as it comes; returns the finish reason."""
    reason = FinishReason.FAILED
    for packet in stream:
        sinks.write(packet)
        meter.take(packet, time.monotonic())
        status.show(meter.line(text_wait_s(stream)), time.monotonic())
        reason = packet.finish_reason or reason
    return reason


def text_wait_s(stream: Stream) -> float:
    """Seconds in which the model had nothing to do because its text had not come."""
    return stream.timing.stages_s().get("input wait", 0.0) + stream.timing.later_text_wait_s


def tell_end(stream: Stream, meter: SpeechMeter, reason: FinishReason, options: SayOptions, output: str) -> None:
    """The last lines: totals, why it ended, the limit in force, where the sound is."""
    note(meter.line(text_wait_s(stream)))
    limit = f"{options.max_frames} frames (--max-frames)" if options.max_frames else stream_limit(stream)
    note(ending_line(reason, meter.frames, limit))
    stages = stream.timing.stages_s()
    if stages:
        note("until the first packet: " + ", ".join(f"{name} {1000 * spent:.0f} ms" for name, spent in stages.items()))
    if reason in UNEASY:
        note("the end may hold silence or repetition; another --seed usually ends well")
    if output not in ("", "-"):
        note(f"wrote {output}")


def stream_limit(stream: Stream) -> str:
    """The limit that held where the caller set none."""
    budget = stream.budget_frames
    return f"{budget} frames (scaled to the text; --max-frames overrides it)" if budget else "the text itself"
