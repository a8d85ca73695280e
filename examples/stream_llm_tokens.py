"""Speak the tokens of a language model as they arrive: pass an async iterator of strings as the text.

python examples/stream_llm_tokens.py [out.wav]
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import legato
from legato.audio.writer import open_file


async def tokens() -> AsyncIterator[str]:
    """Placeholder for the stream of an LLM client, such as `chunk.choices[0].delta.content or ""` of OpenAI's."""
    for token in ("The ", "an", "swer", " is", " spo", "ken", " while", " it", " is", " writ", "ten", "."):
        await asyncio.sleep(0.02)
        yield token


async def main(path: str) -> None:
    with legato.load() as tts, open_file(Path(path), tts.sample_rate_hz) as writer:
        stream = tts.stream(tokens())
        async for packet in stream:  # the event loop is not blocked
            writer.write(packet)
    print(f"wrote {path}; waited {stream.timing.text_stall_s:.2f} s for text")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "out.wav"))
