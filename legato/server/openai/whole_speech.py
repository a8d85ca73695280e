"""Synthesize one text to a complete file, for routes that answer with files instead of a stream.

`synthesize` runs one engine stream from opening to its last packet, with its own request record. Leaving it early
cancels the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from legato.audio.formats import AudioFormat
from legato.errors import LegatoError
from legato.server.encoding import StreamEncoder, apply_patches, resolve_format, resolve_sample_rate
from legato.server.errors import ApiError, api_error
from legato.server.openai.schemas import SpeechRequestBody
from legato.server.openai.speech_request import build_request, check_options, check_text
from legato.server.request_records import RequestRecord
from legato.server.session_json import words_json
from legato.server.state import ServerState
from legato.types import FinishReason, Packet


@dataclass(frozen=True, slots=True)
class SpokenFile:
    """A finished utterance: the bytes of its file, its format, and the times of its words (empty unless requested)."""

    data: bytes
    kind: AudioFormat
    words: tuple[dict[str, object], ...] = ()


async def synthesize(
    default: ServerState,
    body: SpeechRequestBody,
    record: RequestRecord,
    *,
    client: str,
    on_packet: Callable[[Packet], None] = lambda _: None,
) -> SpokenFile:
    """Speak `body.input` and return the file. `on_packet` is called with each packet.

    Raises `ApiError` for every failure. `record` has the outcome; the caller stores it.
    """
    default.records.add(record)
    default.metrics.request_started(record.route)
    try:
        return await _speak(default, body, record, client, on_packet)
    except (LegatoError, ApiError) as error:
        failure = api_error(error, record.id) if isinstance(error, LegatoError) else error
        record.status = "failed" if failure.status >= 500 else "refused"
        record.error_code, record.error_message = failure.code, str(failure)
        raise failure from error
    except BaseException:
        record.status, record.error_code = "cancelled", "cancelled"
        raise
    finally:
        default.metrics.request_finished(record.route, record.status, record.finish_reason or record.error_code)


async def _speak(
    default: ServerState,
    body: SpeechRequestBody,
    record: RequestRecord,
    client: str,
    on_packet: Callable[[Packet], None],
) -> SpokenFile:
    state = default.for_model(body.model)
    state.check_ready()
    kind = resolve_format(body.response_format)
    rate_hz = resolve_sample_rate(body.sample_rate, state.tts.sample_rate_hz, kind)
    record.response_format, record.sample_rate_hz = kind.value, rate_hz
    check_text(state, body.input)
    check_options(state, body)
    with state.clients.stream(client):
        request = await build_request(state, body)
        encoder = StreamEncoder(kind, state.tts.sample_rate_hz, rate_hz, patchable=True)
        pieces: list[bytes] = []
        try:
            async with await state.bridge.open(request, body.input, request_id=record.id) as stream:
                record.timing, record.notes, record.status = stream.timing, stream.notes, "speaking"
                async for packet in stream:
                    if packet.finish_reason is FinishReason.CANCELLED:
                        raise ApiError(503, "engine_closed", "the engine stopped before the end of the speech")
                    pieces.append(await state.bridge.encode(encoder, encoder.encode, packet))
                    record.frames += packet.frames
                    record.samples = encoder.samples
                    record.input_tokens = stream.handle.text_tokens
                    if packet.finish_reason is not None:
                        record.finish_reason = packet.finish_reason.value
                    on_packet(packet)
                codec = state.tts.model.config.codec
                words = stream.handle.words(codec.frame_samples) if body.word_timestamps else []
        finally:
            encoder.abort()
    data = apply_patches(b"".join(pieces), encoder.patches)
    record.status, record.encode_s, record.bytes_sent = "finished", encoder.seconds, len(data)
    return SpokenFile(data, kind, tuple(words_json(words, body.input, codec.sample_rate_hz)))
