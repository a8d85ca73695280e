// Language of the interface: one of the tables in `strings.js`, selected by the browser's locale or the user.
//
// Elements name their text with `data-text="key"`, their label with `data-label="key"` and their placeholder with
// `data-hint="key"`, so that the language can be changed at any time. The choice is stored in the browser.

import { STRINGS } from "./strings.js";

const STORAGE_KEY = "legato.language";

let current = "en";
const listeners = new Set();

export function language() {
  return current;
}

// The string for `key`, with each `{name}` replaced by its value.
export function text(key, values = {}) {
  const template = STRINGS[current][key];
  if (template === undefined) throw new Error(`no string ${key} in ${current}`);
  return template.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export function onLanguageChange(listener) {
  listeners.add(listener);
}

export function translate(root) {
  for (const element of root.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", text(element.dataset.label));
    if (element.tagName === "BUTTON") element.title = text(element.dataset.label);
  }
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = text(element.dataset.hint);
}

export function setLanguage(name) {
  current = name in STRINGS ? name : "en";
  localStorage.setItem(STORAGE_KEY, current);
  document.documentElement.lang = current === "zh" ? "zh-Hans" : current;
  document.title = text("title");
  translate(document);
  for (const listener of listeners) listener();
}

export function initialLanguage() {
  return localStorage.getItem(STORAGE_KEY) ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
}
