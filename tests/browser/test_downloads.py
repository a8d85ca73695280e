"""Chromium decodes default downloads of every format, with their true length."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from legato.api import load
from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running

FRAMES = 14
DECODE = """
async (fields) => {
  const answer = await fetch("/v1/audio/speech", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify(fields),
  });
  const context = new OfflineAudioContext(1, 1, 24000);
  return (await context.decodeAudioData(await answer.arrayBuffer())).length;
}
"""
PLAY = """
async (url) => {
  const player = new Audio(url);
  player.muted = true;
  await player.play();
  await new Promise((resolve) => { player.onended = resolve; });
  return player.currentTime;
}
"""


@pytest.fixture(scope="module")
def speaker(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A model with built-in voices, which cannot know the length of its speech in advance."""
    with load(tiny_checkpoint("tiny-custom-voice")) as tts, running(tts, ServerConfig(warm_up=False)) as server:
        yield server


@pytest.fixture
def page(browser: Browser, speaker: Running) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(f"{speaker.url}/health")  # a page without the policy that protects the web page
    yield page
    page.close()


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "opus"])
def test_chromium_decodes_default_downloads(page: Page, kind: str) -> None:
    fields = {"input": "Some words.", "voice": "ryan", "response_format": kind, "max_new_tokens": FRAMES}
    length = page.evaluate(DECODE, fields)
    allowed = 0 if kind in ("wav", "flac") else round(0.09 * 24_000)
    assert 0 <= length - FRAMES * 1920 <= allowed


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3"])
def test_audio_element_plays_a_url(page: Page, kind: str) -> None:
    seconds = page.evaluate(PLAY, f"/v1/audio/speech?input=Some+words.&response_format={kind}&max_new_tokens={FRAMES}")
    assert seconds == pytest.approx(FRAMES * 0.08, abs=0.15)
