// The buffer level over the last seconds: what waits to be heard, as it rises with each packet and sinks as it plays.
//
// A `Level` owns one canvas and the measurements that it shows; it forgets what has left the view. Moments in which
// playback stood still are marked. Knows no socket.

import { prepare } from "./canvas.js";

const SPAN_MS = 12_000;
const LEAST_MS = 1000;
const ROUND_MS = [500, 1000, 2000, 5000, 10_000, 20_000, 60_000];

export class Level {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
  }

  // `waitingMs` of sound wait now; `dry` if it should be playing and has nothing.
  note(nowMs, waitingMs, dry) {
    this.points.push({ nowMs, waitingMs, dry });
    while (this.points.length && this.points[0].nowMs < nowMs - SPAN_MS - 500) this.points.shift();
  }

  draw(nowMs) {
    const { context, width, height, colour } = prepare(this.canvas);
    const top = Math.max(LEAST_MS, ...this.points.map((point) => point.waitingMs)) * 1.12;
    const x = (ms) => width - ((nowMs - ms) / SPAN_MS) * width;
    const y = (ms) => height - 2 - (ms / top) * (height - 6);
    this.grid(context, { width, y, top, colour });
    if (!this.points.length) return;
    context.beginPath();
    for (const point of this.points) context.lineTo(x(point.nowMs), y(point.waitingMs));
    context.strokeStyle = colour("played");
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(x(this.points.at(-1).nowMs), height);
    context.lineTo(x(this.points[0].nowMs), height);
    context.globalAlpha = 0.16;
    context.fillStyle = colour("played");
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = colour("cut");
    for (const point of this.points.filter(({ dry }) => dry)) context.fillRect(x(point.nowMs) - 1, height - 3, 2, 3);
  }

  // One line at a round number of seconds.
  grid(context, { width, y, top, colour }) {
    const ms = ROUND_MS.findLast((each) => each < 0.8 * top) ?? ROUND_MS[0];
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
