// Light or dark theme: the system's preference until the user chooses. The choice is stored in the browser.
//
// `style.css` defines every colour for both themes; this module only selects one of them.

const STORAGE_KEY = "legato.theme";

export function restoreTheme() {
  const theme = localStorage.getItem(STORAGE_KEY);
  if (theme) document.documentElement.dataset.theme = theme;
}

export function toggleTheme() {
  const systemDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const current = document.documentElement.dataset.theme ?? (systemDark ? "dark" : "light");
  const next = current === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem(STORAGE_KEY, next);
}
