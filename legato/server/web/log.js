// What a session said, as a list: each text with the words that were heard so far, and how it ended.
//
// Owns one list element and keeps an entry for each utterance, redrawn only when what it shows has changed. Text goes in
// as text, never as markup. Decides nothing.

import { text } from "./language.js";

const KEPT = 30;

export class Log {
  constructor(list) {
    this.list = list;
    this.entries = new Map();
  }

  draw(utterances, nowMs) {
    for (const utterance of utterances.slice(-KEPT)) {
      const entry = this.entries.get(utterance.id) ?? this.add(utterance);
      const heard = utterance.charactersHeardBy(nowMs);
      const drawn = JSON.stringify([utterance.state, heard, utterance.underruns, utterance.notes, document.documentElement.lang]);
      if (entry.drawn === drawn) continue;
      entry.drawn = drawn;
      fill(entry, utterance, heard);
    }
    while (this.list.children.length > KEPT) {
      this.entries.delete(Number(this.list.lastElementChild.dataset.utterance));
      this.list.lastElementChild.remove();
    }
  }

  add(utterance) {
    const item = document.createElement("li");
    item.dataset.utterance = utterance.id;
    const said = document.createElement("p");
    said.className = "said";
    const facts = document.createElement("p");
    facts.className = "facts";
    item.append(said, facts);
    this.list.prepend(item);
    const entry = { item, said, facts, drawn: "" };
    this.entries.set(utterance.id, entry);
    return entry;
  }
}

function fill({ item, said, facts }, utterance, heard) {
  item.dataset.state = utterance.state;
  const heardPart = document.createElement("span");
  heardPart.className = "heard";
  heardPart.textContent = utterance.text.slice(0, heard);
  const rest = document.createElement(utterance.state === "stopped" ? "s" : "span");
  rest.textContent = utterance.text.slice(heard);
  said.replaceChildren(heardPart, rest);
  facts.textContent = factsOf(utterance).join(" · ");
}

function factsOf(utterance) {
  const facts = [text(`entry_${utterance.state}`)];
  const { firstSound } = utterance.milestones();
  if (utterance.voice) facts.push(utterance.voice);
  if (firstSound !== undefined) facts.push(`${text("firstSound")} ${firstSound.toFixed(0)} ms`);
  if (utterance.state === "over") facts.push(text("seconds", { seconds: (utterance.samples / utterance.rateHz).toFixed(1) }));
  if (utterance.state === "stopped" && utterance.heardError) facts.push(text("heardAbout"));
  if (utterance.finishReason === "max_frames") facts.push(text("truncated"));
  if (utterance.underruns) {
    facts.push(text("underrun", { count: utterance.underruns, ms: utterance.underrunMs.toFixed(0) }));
  }
  return [...facts, ...utterance.notes];
}
