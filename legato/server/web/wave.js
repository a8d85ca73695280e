// Packets as they land, on the line of time of what is heard: one block a packet, its waveform inside, a playhead.
//
// A `Wave` owns one canvas. It draws the utterances of a session one after the other, each as far as it will be heard:
// what a stop dropped fades away behind the cut. State that it keeps is only where the view stands.

import { calm, prepare } from "./canvas.js";

const PIXELS_PER_S = 150;
const LAND_MS = 420;
const FADE_MS = 700;
const PLAYHEAD_AT = 0.42;
const BAR_PIXELS = 2;
const MARGIN_PIXELS = 8;
const GAP_PIXELS = 5; // between utterances
const SHOWN = 12; // utterances

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    this.view = 0;
  }

  // Returns true while something moves.
  draw(utterances, nowMs) {
    const { context, width, height, colour } = prepare(this.canvas);
    const shown = utterances.slice(-SHOWN);
    let x = MARGIN_PIXELS;
    let head = x;
    let moving = false;
    const pieces = shown.map((utterance) => {
      const heard = utterance.playedBy(nowMs);
      const cut = utterance.state === "stopped" || utterance.state === "failed";
      const length = pixels(cut ? heard : utterance.samples, utterance);
      const piece = { utterance, from: x, heard: pixels(heard, utterance), cut };
      if (heard > 0 || !utterance.pending) head = x + piece.heard;
      x += length + (length ? GAP_PIXELS : 0);
      return piece;
    });
    this.follow(head, x, width);
    context.translate(-this.view, 0);
    for (const piece of pieces) moving = this.piece(context, piece, height, colour, nowMs) || moving;
    if (x > MARGIN_PIXELS) this.playhead(context, head, height, colour, shown.some((each) => each.pending));
    return moving;
  }

  follow(head, end, width) {
    const wanted = Math.max(0, Math.min(head - width * PLAYHEAD_AT, Math.max(end, head) - width + 24));
    this.view = calm() ? wanted : this.view + (wanted - this.view) * 0.35;
  }

  piece(context, { utterance, from, heard, cut }, height, colour, nowMs) {
    let moving = false;
    for (const packet of utterance.packets) {
      const x0 = from + pixels(packet.first, utterance);
      const x1 = x0 + pixels(packet.samples, utterance);
      if (x1 < this.view - 4 || x0 > this.view + this.canvas.clientWidth + 4) continue;
      const age = nowMs - packet.landedMs;
      const fresh = calm() ? 0 : Math.max(0, 1 - age / LAND_MS);
      moving ||= fresh > 0;
      const ghost = cut ? this.ghost(utterance, x1 - from - heard, nowMs) : 1;
      if (ghost <= 0 && x0 - from >= heard) continue;
      moving ||= ghost < 1;
      this.block(context, { x0, x1, height, fresh, ghost, packet, utterance, heard: from + heard, colour, cut });
    }
    if (cut && heard > 0) this.cut(context, from + heard, height, colour);
    return moving;
  }

  // How much of a dropped part is still to be seen.
  ghost(utterance, beyond, nowMs) {
    if (beyond <= 0) return 1;
    utterance.droppedMs ??= nowMs;
    return calm() ? 0 : Math.max(0, 1 - (nowMs - utterance.droppedMs) / FADE_MS);
  }

  block(context, { x0, x1, height, fresh, ghost, packet, utterance, heard, colour, cut }) {
    const clip = cut && ghost <= 0 ? heard : x1;
    const rise = fresh * fresh * 10;
    context.globalAlpha = Math.min(1, 1 - 0.5 * fresh) * (x0 >= heard && cut ? ghost : 1);
    context.fillStyle = colour("packet");
    context.beginPath();
    context.roundRect(x0 + 1, 8 - rise, Math.max(1, Math.min(x1, clip) - x0 - 2), height - 16, 5);
    context.fill();
    const step = pixels(480, utterance);
    const middle = height / 2 - rise;
    for (const [index, peak] of packet.peaks.entries()) {
      const x = x0 + (index + 0.5) * step;
      if (x > clip) break;
      const size = Math.max(1.5, Math.sqrt(peak) * (height - 34) * 0.62);
      context.globalAlpha = x > heard && cut ? ghost : 1;
      context.fillStyle = x <= heard ? colour("played") : colour("waiting");
      context.beginPath();
      context.roundRect(x - BAR_PIXELS / 2, middle - size, BAR_PIXELS, 2 * size, 1);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  cut(context, x, height, colour) {
    context.strokeStyle = colour("cut");
    context.lineWidth = 2;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(x + 1, 9);
    context.lineTo(x + 1, height - 9);
    context.stroke();
  }

  playhead(context, x, height, colour, live) {
    context.strokeStyle = context.fillStyle = live ? colour("head") : colour("faint");
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
