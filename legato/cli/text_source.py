"""Where the text to speak comes from: the argument, a file, or standard input read as it arrives.

Owns the decoder of standard input while it is read. Knows no model.
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

PIECE_BYTES = 4096


def choose_text(words: tuple[str, ...], file: Path | None) -> str | Iterator[str]:
    """The text whole, or an iterator of its pieces where it comes through a pipe or from the keyboard."""
    if words and file is not None:
        raise click.UsageError("give the text as an argument or with --file, not both")
    if words and words != ("-",):
        return " ".join(words)
    if file is not None and str(file) != "-":
        return decode_text(file.read_bytes(), str(file))
    descriptor = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # `< file`: all of it is there
        return decode_text(sys.stdin.buffer.read(), "standard input")
    if os.isatty(descriptor):
        note("reading text from the keyboard; end it with Ctrl-D on a line of its own")
    return read_pieces(descriptor)


def decode_text(data: bytes, name: str) -> str:
    """UTF-8 with or without a byte order mark; `InputError` with the place of the first wrong byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}", field="text"
        ) from error


def read_pieces(descriptor: int) -> Iterator[str]:
    """Text as it arrives: each read returns what is there, and a character whose bytes are cut waits for the rest."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    while True:
        data = os.read(descriptor, PIECE_BYTES)
        try:
            piece = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise InputError(f"standard input is not UTF-8 ({error.reason})", field="text") from error
        if piece:
            yield piece
        if not data:
            return
