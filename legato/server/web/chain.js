// The chain from the request to the first sound: one bar of stages to scale, figures above it, their list below.
//
// Owns the elements it is given and redraws them from an utterance; derives nothing itself. The bar is for the eye; the
// figures and the list hold the same for everybody.

import { text } from "./language.js";
import { STAGES } from "./utterance.js";

const LEAST_SHARE = 0.004; // of the whole: what is shorter has no place in the bar

export class Chain {
  constructor(root) {
    this.bar = root.querySelector(".chain");
    this.list = root.querySelector(".stages");
    this.figures = Object.fromEntries(
      [...root.querySelectorAll("[data-figure]")].map((element) => [element.dataset.figure, element]),
    );
    this.drawn = "";
  }

  draw(utterance) {
    const stages = utterance?.stages() ?? [];
    const drawn = JSON.stringify([stages, document.documentElement.lang]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const milestones = utterance?.milestones() ?? {};
    for (const [name, element] of Object.entries(this.figures)) show(element, milestones[name]);
    const sum = stages.reduce((total, { ms }) => total + ms, 0);
    this.bar.replaceChildren(...stages.filter(({ ms }) => ms >= LEAST_SHARE * sum).map((stage) => segment(stage, sum)));
    this.list.replaceChildren(...stages.map(entry));
  }
}

function show(element, ms) {
  const number = document.createElement("b");
  const seconds = ms >= 999.5;
  number.textContent = ms === undefined ? "–" : seconds ? (ms / 1000).toFixed(2) : ms.toFixed(ms < 9.95 ? 1 : 0);
  element.replaceChildren(number, ms === undefined ? "" : seconds ? " s" : " ms");
}

function segment({ name, ms }, sum) {
  const part = document.createElement("span");
  part.className = `stage s${STAGES.indexOf(name)}`;
  part.style.flexGrow = sum ? ms / sum : 0;
  part.title = `${text(`stage_${name}`)} ${ms.toFixed(1)} ms`;
  return part;
}

function entry({ name, ms }) {
  const item = document.createElement("li");
  const swatch = document.createElement("i");
  swatch.className = `stage s${STAGES.indexOf(name)}`;
  const value = document.createElement("b");
  value.textContent = ms.toFixed(ms < 9.95 ? 1 : 0);
  item.append(swatch, `${text(`stage_${name}`)} `, value, " ms");
  return item;
}
