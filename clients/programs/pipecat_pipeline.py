"""The `pipecat-ai` package: its OpenAI service in a pipeline, with an interruption."""

from __future__ import annotations

import asyncio

from checks import TEXT, URL, check, describe, expect_pcm
from pipecat.frames.frames import EndFrame, Frame, InterruptionFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.tts import OpenAITTSService


class Collector(FrameProcessor):
    """Keeps the audio that reaches the end of the pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = b""
        self.arrived = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Collect audio, and pass every frame on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += frame.audio
            self.arrived.set()
        await self.push_frame(frame, direction)


async def speak(*, interrupt: bool) -> bytes:
    """Speak `TEXT`; with `interrupt`, stop a long text when its first audio is there, and then speak `TEXT`."""
    settings = OpenAITTSService.Settings(voice="alloy", model="gpt-4o-mini-tts", instructions="Friendly.")
    service = OpenAITTSService(api_key="none", base_url=f"{URL}/v1", settings=settings)
    collector = Collector()
    task = PipelineTask(Pipeline([service, collector]))
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    if interrupt:
        await task.queue_frame(TTSSpeakFrame(TEXT * 20))
        await asyncio.wait_for(collector.arrived.wait(), 60)
        await task.queue_frame(InterruptionFrame())
        await asyncio.sleep(0.5)
        collector.audio = b""
    await task.queue_frames([TTSSpeakFrame(TEXT), EndFrame()])
    await asyncio.wait_for(running, 120)
    return collector.audio


def pipeline() -> None:
    """One text."""
    expect_pcm(asyncio.run(speak(interrupt=False)))


def interruption() -> None:
    """After an interruption, the next text is spoken, and the first one has stopped."""
    audio = asyncio.run(speak(interrupt=True))
    expect_pcm(audio)
    assert len(audio) / 48_000 < 20, "the interrupted text went on"


describe("pipecat-ai")
check("pipeline", pipeline)
check("interruption", interruption)
