// Light or dark: as the system has it, until the user says otherwise. The choice is kept in the browser.
//
// Colours are in `style.css` alone, as pairs; this sets which half of them holds.

const STORED = "legato.theme";

export function restoreTheme() {
  const theme = localStorage.getItem(STORED);
  if (theme) document.documentElement.dataset.theme = theme;
}

export function toggleTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem(STORED, next);
}
