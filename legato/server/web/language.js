// The language of the interface: one of the tables in `strings.js`, chosen by the browser or the user.
//
// Elements say what they show by `data-text="key"` and what they are called by `data-label="key"`, so that a change of
// language is one walk over the page. The choice is kept in the browser; texts to be spoken are none of this.

import { STRINGS } from "./strings.js";

const STORED = "legato.language";

let current = "en";
const listeners = new Set();

export function language() {
  return current;
}

// The string called `key`, with `{name}` replaced by the values.
export function text(key, values = {}) {
  const found = STRINGS[current][key];
  if (found === undefined) throw new Error(`no string ${key} in ${current}`);
  return found.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export function onLanguage(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function translate(root) {
  for (const element of root.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", text(element.dataset.label));
    if (element.tagName === "BUTTON") element.title = text(element.dataset.label);
  }
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = text(element.dataset.hint);
}

export function chooseLanguage(name) {
  current = name in STRINGS ? name : "en";
  localStorage.setItem(STORED, current);
  document.documentElement.lang = current === "zh" ? "zh-Hans" : current;
  document.title = text("title");
  translate(document);
  for (const listener of listeners) listener();
}

export function rememberedLanguage() {
  return localStorage.getItem(STORED) ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
}
