// Latency breakdown from the request to the first sound: key figures, a bar of stages to scale, and a list.
//
// A `Chain` owns these elements and redraws them from an utterance, which computes all values. The bar is hidden from screen
// readers; the figures and the list contain the same data.

import { text } from "./language.js";
import { STAGES } from "./utterance.js";

const MIN_SHARE = 0.004; // shorter stages are left out of the bar

export class Chain {
  constructor(root) {
    this.bar = root.querySelector(".chain");
    this.list = root.querySelector(".stages");
    this.figures = Object.fromEntries(
      [...root.querySelectorAll("[data-figure]")].map((element) => [element.dataset.figure, element]),
    );
    this.content = "";
  }

  draw(utterance) {
    const stages = utterance?.stages() ?? [];
    const content = JSON.stringify([stages, document.documentElement.lang]);
    if (content === this.content) return;
    this.content = content;
    const milestones = utterance?.milestones() ?? {};
    for (const [name, element] of Object.entries(this.figures)) drawFigure(element, milestones[name]);
    const sum = stages.reduce((total, { ms }) => total + ms, 0);
    this.bar.replaceChildren(...stages.filter(({ ms }) => ms >= MIN_SHARE * sum).map((stage) => barSegment(stage, sum)));
    this.list.replaceChildren(...stages.map(listItem));
  }
}

function drawFigure(element, ms) {
  const number = document.createElement("b");
  if (ms === undefined) {
    number.textContent = "–";
    element.replaceChildren(number);
  } else if (ms >= 999.5) {
    number.textContent = (ms / 1000).toFixed(2);
    element.replaceChildren(number, " s");
  } else {
    number.textContent = formatMs(ms);
    element.replaceChildren(number, " ms");
  }
}

// One decimal below 10 ms, none above.
function formatMs(ms) {
  return ms.toFixed(ms < 9.95 ? 1 : 0);
}

function barSegment({ name, ms }, sum) {
  const segment = document.createElement("span");
  segment.className = `stage s${STAGES.indexOf(name)}`;
  segment.style.flexGrow = sum ? ms / sum : 0;
  segment.title = `${text(`stage_${name}`)} ${ms.toFixed(1)} ms`;
  return segment;
}

function listItem({ name, ms }) {
  const item = document.createElement("li");
  const swatch = document.createElement("i");
  swatch.className = `stage s${STAGES.indexOf(name)}`;
  const value = document.createElement("b");
  value.textContent = formatMs(ms);
  item.append(swatch, `${text(`stage_${name}`)} `, value, " ms");
  return item;
}
