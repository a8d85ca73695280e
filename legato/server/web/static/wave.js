// Timeline of a session: one block per packet with its waveform, and a playhead.
//
// A `Wave` owns one canvas and its scroll position. It draws the utterances one after another. The dropped part of a stopped
// utterance fades out behind the cut.

import { prefersReducedMotion, prepareCanvas } from "./canvas.js";

const PIXELS_PER_S = 150;
const ARRIVAL_MS = 420; // animation of a new packet
const FADE_MS = 700; // animation of dropped audio
const PLAYHEAD_AT = 0.42;
const BAR_PIXELS = 2;
const MARGIN_PIXELS = 8;
const GAP_PIXELS = 5; // between utterances
const MAX_UTTERANCES = 12;

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    this.scrollX = 0;
  }

  // Returns true while an animation is running.
  draw(utterances, nowMs) {
    const { context, width, height, colour } = prepareCanvas(this.canvas);
    const shown = utterances.slice(-MAX_UTTERANCES);
    let x = MARGIN_PIXELS;
    let playheadX = x;
    let moving = false;
    const items = shown.map((utterance) => {
      const played = utterance.playedAt(nowMs);
      const cut = utterance.state === "stopped" || utterance.state === "failed";
      const length = pixels(cut ? played : utterance.samples, utterance);
      const item = { utterance, startX: x, playedPixels: pixels(played, utterance), cut };
      if (played > 0 || !utterance.pending) playheadX = x + item.playedPixels;
      x += length + (length ? GAP_PIXELS : 0);
      return item;
    });
    this.scroll(playheadX, x, width);
    context.translate(-this.scrollX, 0);
    for (const item of items) moving = this.drawUtterance(context, item, height, colour, nowMs) || moving;
    if (x > MARGIN_PIXELS) this.drawPlayhead(context, playheadX, height, colour, shown.some((each) => each.pending));
    return moving;
  }

  // Move towards the position at which the playhead is at its place, without scrolling past the end.
  scroll(playheadX, endX, width) {
    const target = Math.max(0, Math.min(playheadX - width * PLAYHEAD_AT, Math.max(endX, playheadX) - width + 24));
    this.scrollX = prefersReducedMotion() ? target : this.scrollX + (target - this.scrollX) * 0.35;
  }

  drawUtterance(context, { utterance, startX, playedPixels, cut }, height, colour, nowMs) {
    let moving = false;
    for (const packet of utterance.packets) {
      const x0 = startX + pixels(packet.first, utterance);
      const x1 = x0 + pixels(packet.samples, utterance);
      if (x1 < this.scrollX - 4 || x0 > this.scrollX + this.canvas.clientWidth + 4) continue;
      const age = nowMs - packet.receivedMs;
      const arrival = prefersReducedMotion() ? 0 : Math.max(0, 1 - age / ARRIVAL_MS); // 1 on arrival, falls to 0
      moving ||= arrival > 0;
      const opacity = cut ? this.droppedOpacity(utterance, x1 - startX - playedPixels, nowMs) : 1;
      if (opacity <= 0 && x0 - startX >= playedPixels) continue;
      moving ||= opacity < 1;
      const playedX = startX + playedPixels;
      this.drawPacket(context, { x0, x1, height, arrival, opacity, packet, utterance, playedX, colour, cut });
    }
    if (cut && playedPixels > 0) this.drawCut(context, startX + playedPixels, height, colour);
    return moving;
  }

  // Opacity of audio that a stop dropped: it fades out. `pixelsAfterCut` is not positive for played audio.
  droppedOpacity(utterance, pixelsAfterCut, nowMs) {
    if (pixelsAfterCut <= 0) return 1;
    utterance.droppedMs ??= nowMs;
    return prefersReducedMotion() ? 0 : Math.max(0, 1 - (nowMs - utterance.droppedMs) / FADE_MS);
  }

  drawPacket(context, { x0, x1, height, arrival, opacity, packet, utterance, playedX, colour, cut }) {
    const clipX = cut && opacity <= 0 ? playedX : x1;
    const rise = arrival * arrival * 10;
    context.globalAlpha = Math.min(1, 1 - 0.5 * arrival) * (x0 >= playedX && cut ? opacity : 1);
    context.fillStyle = colour("packet");
    context.beginPath();
    context.roundRect(x0 + 1, 8 - rise, Math.max(1, Math.min(x1, clipX) - x0 - 2), height - 16, 5);
    context.fill();
    const step = pixels(480, utterance);
    const middle = height / 2 - rise;
    for (const [index, peak] of packet.peaks.entries()) {
      const x = x0 + (index + 0.5) * step;
      if (x > clipX) break;
      const size = Math.max(1.5, Math.sqrt(peak) * (height - 34) * 0.62);
      context.globalAlpha = x > playedX && cut ? opacity : 1;
      context.fillStyle = x <= playedX ? colour("played") : colour("waiting");
      context.beginPath();
      context.roundRect(x - BAR_PIXELS / 2, middle - size, BAR_PIXELS, 2 * size, 1);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  drawCut(context, x, height, colour) {
    context.strokeStyle = colour("cut");
    context.lineWidth = 2;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(x + 1, 9);
    context.lineTo(x + 1, height - 9);
    context.stroke();
  }

  drawPlayhead(context, x, height, colour, active) {
    context.strokeStyle = context.fillStyle = active ? colour("head") : colour("faint");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, 6);
    context.lineTo(x, height - 2);
    context.stroke();
    context.beginPath();
    context.arc(x, 4.5, 3.5, 0, 2 * Math.PI);
    context.fill();
  }
}

function pixels(samples, utterance) {
  return (samples / utterance.rateHz) * PIXELS_PER_S;
}
