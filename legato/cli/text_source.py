"""Read the text to synthesize: from arguments, a file, or standard input as it arrives.

Standard input is decoded incrementally, so that generation can start before the text is complete.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from legato.cli.terminal import note
from legato.errors import InputError

READ_BYTES = 4096


def choose_text(words: tuple[str, ...], file: Path | None) -> str | Iterator[str]:
    """The whole text, or an iterator over its pieces if it comes from a pipe or the keyboard."""
    if words and file is not None:
        raise click.UsageError("give the text as an argument or with --file, not both")
    if words and words != ("-",):
        return " ".join(words)
    if file is not None and str(file) != "-":
        return decode_text(read_file(file), str(file))
    descriptor = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # redirected from a file, so the text is complete
        return decode_text(sys.stdin.buffer.read(), "standard input")
    if os.isatty(descriptor):
        note("reading text from the keyboard; press Enter and Ctrl-D to finish")
    return read_pieces(descriptor)


def read_file(file: Path) -> bytes:
    """Read a text file; `InputError` if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {str(file)!r}: {error.strerror}", field="file") from error


def decode_text(data: bytes, name: str) -> str:
    """Decode UTF-8 with or without a byte order mark; `InputError` with the first invalid byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}", field="text"
        ) from error


def read_pieces(descriptor: int) -> Iterator[str]:
    """Yield text as it arrives. A character whose bytes are split between reads is yielded when it is complete."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    while True:
        data = os.read(descriptor, READ_BYTES)
        try:
            piece = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise InputError(f"standard input is not UTF-8 ({error.reason})", field="text") from error
        if piece:
            yield piece
        if not data:
            return
