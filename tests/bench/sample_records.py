"""Build sample records for the tests of summaries and reports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from legato.bench.environment import Machine, ModelInfo
from legato.bench.records import ALL_STAGES, AudioMetrics, BatchRecord, IncludedWork, RequestInfo, RequestRecord

MACHINE = Machine(
    device="cpu",
    device_name="a CPU",
    cpu="a CPU",
    cores=2,
    threads=1,
    system="Linux x86_64",
    python="3.11",
    torch="2.13",
    legato="0.1",
)
MODEL = ModelInfo(
    name="tiny",
    kind="custom_voice",
    parameters=1000,
    talker_dtype="float32",
    codec_dtype="float32",
    quantization="none",
    codebooks=4,
    sample_rate_hz=24_000,
    frame_samples=1920,
)
STAGES_MS = tuple(float(number + 1) for number in range(len(ALL_STAGES)))


def make_request(
    number: int = 0, *, concurrency: int = 1, transport: str = "in-process", cold: bool = False
) -> RequestInfo:
    return RequestInfo(
        number=number,
        run=0,
        seed=number,
        cold=cold,
        transport=transport,
        loop="closed",
        concurrency=concurrency,
        rate_hz=0.0,
        text_tokens_per_s=0.0,
        input_characters=10 + number,
        layout="streaming",
        packet_frames=(4,),
        max_frames=0,
        prebuffer_ms=0.0,
        max_num_seqs=4,
        included=IncludedWork(text_front_end=True, reference_encoding=False, device_copies=False),
    )


def make_audio(
    stages_ms: Sequence[float] = STAGES_MS, *, gaps_ms: Sequence[float] = (300.0,), underruns: int = 0
) -> AudioMetrics:
    """Pieces of 4 frames. The first arrives at the end of the stage before playout."""
    stages = dict(zip(ALL_STAGES, stages_ms, strict=True))
    arrived = [sum(stages_ms[:-1])]
    for gap in gaps_ms:
        arrived.append(arrived[-1] + gap)
    assert all(earlier <= later for earlier, later in pairwise(arrived))
    return AudioMetrics(
        input_tokens=5,
        frames=4 * len(arrived),
        samples=7680 * len(arrived),
        stages_ms=stages,
        unaccounted_ms=0.0,
        first_packet_ms=sum(stages_ms[1:-2]),
        first_sound_ms=sum(stages_ms),
        first_audible_ms=sum(stages_ms) + 40,
        leading_silence_ms=40.0,
        text_stall_ms=0.0,
        arrived_ms=tuple(arrived),
        piece_samples=(7680,) * len(arrived),
        underruns=underruns,
        underrun_ms=10.0 * underruns,
        real_time_factor=0.5,
    )


SAMPLE_REQUEST = make_request()
SAMPLE_AUDIO = make_audio()


def make_record(
    request: RequestInfo = SAMPLE_REQUEST, *, at_s: float = 0.0, audio: AudioMetrics | None = SAMPLE_AUDIO
) -> RequestRecord:
    """A served request; without `audio`, a refused one."""
    return RequestRecord(
        machine=MACHINE,
        model=MODEL,
        request=request,
        at_s=at_s,
        outcome="refused" if audio is None else "eos",
        error_code="queue_full" if audio is None else "",
        synchronized=True,
        batch_rows=1.0,
        peak_bytes=2**20,
        audio=audio,
    )


def make_batch(mode: str = "default", streams: int = 4, total_frames_per_s: float = 20.0) -> BatchRecord:
    return BatchRecord(
        machine=MACHINE,
        model=MODEL,
        packet_frames=(4,),
        max_seq_len=128,
        mode=mode,
        streams=streams,
        frames=8,
        talker_frames_per_s=1.0,
        predictor_frames_per_s=1.0,
        codec_frames_per_s=1.0,
        total_frames_per_s=total_frames_per_s,
        audio_s_per_s=1.6,
        prefill_s=0.1,
        other_s=0.1,
        total_s=1.0,
        slot_bytes=1,
        peak_bytes=1,
    )
