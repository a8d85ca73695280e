// Graph of the buffered audio over the last seconds: it rises with each packet and falls during playback.
//
// A `Level` owns one canvas and the measurements in view. Underruns are marked.

import { prepareCanvas } from "./canvas.js";

const SPAN_MS = 12_000;
const MIN_SCALE_MS = 1000;
const GRID_MS = [500, 1000, 2000, 5000, 10_000, 20_000, 60_000];

export class Level {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
  }

  add(timeMs, bufferedMs, underrun) {
    this.points.push({ timeMs, bufferedMs, underrun });
    while (this.points.length && this.points[0].timeMs < timeMs - SPAN_MS - 500) this.points.shift();
  }

  draw(nowMs) {
    const { context, width, height, colour } = prepareCanvas(this.canvas);
    const top = Math.max(MIN_SCALE_MS, ...this.points.map((point) => point.bufferedMs)) * 1.12;
    const x = (ms) => width - ((nowMs - ms) / SPAN_MS) * width;
    const y = (ms) => height - 2 - (ms / top) * (height - 6);
    this.drawGrid(context, { width, y, top, colour });
    if (!this.points.length) return;
    context.beginPath();
    for (const point of this.points) context.lineTo(x(point.timeMs), y(point.bufferedMs));
    context.strokeStyle = colour("played");
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(x(this.points.at(-1).timeMs), height);
    context.lineTo(x(this.points[0].timeMs), height);
    context.globalAlpha = 0.16;
    context.fillStyle = colour("played");
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = colour("cut");
    for (const point of this.points.filter(({ underrun }) => underrun)) context.fillRect(x(point.timeMs) - 1, height - 3, 2, 3);
  }

  // One labelled line at a round value.
  drawGrid(context, { width, y, top, colour }) {
    const ms = GRID_MS.findLast((candidate) => candidate < 0.8 * top) ?? GRID_MS[0];
    context.strokeStyle = context.fillStyle = colour("faint");
    context.lineWidth = 0.5;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(0, y(ms));
    context.lineTo(width, y(ms));
    context.stroke();
    context.setLineDash([]);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText(`${ms / 1000} s`, width - 6, y(ms) - 3);
  }
}
