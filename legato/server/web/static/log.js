// The session's history: a list of the spoken texts, with the part heard so far and the outcome of each.
//
// A `Log` owns one list element and an entry per utterance. An entry is updated only when its content changes. Texts are
// inserted as text nodes, never as markup.

import { text } from "./language.js";

const MAX_ENTRIES = 30;

export class Log {
  constructor(list) {
    this.list = list;
    this.entries = new Map();
  }

  draw(utterances, nowMs) {
    for (const utterance of utterances.slice(-MAX_ENTRIES)) {
      const entry = this.entries.get(utterance.id) ?? this.add(utterance);
      const heard = utterance.charactersHeardAt(nowMs);
      const content = JSON.stringify([utterance.state, heard, utterance.underruns, utterance.notes, document.documentElement.lang]);
      if (entry.content === content) continue;
      entry.content = content;
      update(entry, utterance, heard);
    }
    while (this.list.children.length > MAX_ENTRIES) {
      this.entries.delete(Number(this.list.lastElementChild.dataset.utterance));
      this.list.lastElementChild.remove();
    }
  }

  add(utterance) {
    const item = document.createElement("li");
    item.dataset.utterance = utterance.id;
    const spoken = document.createElement("p");
    spoken.className = "spoken";
    const details = document.createElement("p");
    details.className = "details";
    item.append(spoken, details);
    this.list.prepend(item);
    const entry = { item, spoken, details, content: "" };
    this.entries.set(utterance.id, entry);
    return entry;
  }
}

function update({ item, spoken, details }, utterance, heard) {
  item.dataset.state = utterance.state;
  const heardPart = document.createElement("span");
  heardPart.className = "heard";
  heardPart.textContent = utterance.text.slice(0, heard);
  const rest = document.createElement(utterance.state === "stopped" ? "s" : "span");
  rest.textContent = utterance.text.slice(heard);
  spoken.replaceChildren(heardPart, rest);
  details.textContent = detailsOf(utterance).join(" · ");
}

function detailsOf(utterance) {
  const details = [text(`entry_${utterance.state}`)];
  const { firstSound } = utterance.milestones();
  if (utterance.voice) details.push(utterance.voice);
  if (firstSound !== undefined) details.push(`${text("firstSound")} ${firstSound.toFixed(0)} ms`);
  if (utterance.state === "finished") {
    details.push(text("seconds", { seconds: (utterance.samples / utterance.rateHz).toFixed(1) }));
  }
  if (utterance.state === "stopped" && utterance.heardError) details.push(text("heardAbout"));
  if (utterance.finishReason === "max_frames") details.push(text("truncated"));
  if (utterance.underruns) {
    details.push(text("underrun", { count: utterance.underruns, ms: utterance.underrunMs.toFixed(0) }));
  }
  return [...details, ...utterance.notes];
}
