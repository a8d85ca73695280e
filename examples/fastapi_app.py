"""Speech in a FastAPI application: GET /say?text=Hello streams a WAV file while it is generated.

python examples/fastapi_app.py        then: curl "http://127.0.0.1:8001/say?text=Hello" -o hello.wav
(`legato serve` is a complete server: OpenAI's API, WebSockets, cloned voices, metrics.)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

import legato
from legato.audio.encoders import make_encoder
from legato.audio.formats import AudioFormat


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with legato.load(max_num_seqs=4) as tts:  # one engine generates up to four streams as a batch
        app.state.tts = tts
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/say")
async def say(request: Request, text: str, voice: str = "") -> StreamingResponse:
    try:
        stream = request.app.state.tts.stream(text, voice=voice)
    except legato.QueueFullError as error:
        raise HTTPException(503, str(error)) from error
    except legato.InputError as error:
        raise HTTPException(400, str(error)) from error
    return StreamingResponse(wav(stream), media_type="audio/wav")


async def wav(stream: legato.Stream) -> AsyncIterator[bytes]:
    encoder = make_encoder(AudioFormat.WAV, stream.sample_rate_hz, patchable=False)
    with stream:  # a client that disconnects cancels the stream and frees its slot
        async for packet in stream:
            yield encoder.encode(packet)
    yield encoder.finish().data


if __name__ == "__main__":
    uvicorn.run(app, port=8001)
