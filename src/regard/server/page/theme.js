// Light or dark colours: the system's preference until the user chooses.
import { repaintAll } from "./colormap.js";

const STORAGE_KEY = "regard-theme", system = matchMedia("(prefers-color-scheme: dark)");
let chosen = storedTheme();

function storedTheme() {
  try { return localStorage.getItem(STORAGE_KEY); } catch { return null; }
}

function apply(button) {
  const theme = chosen ?? (system.matches ? "dark" : "light"), other = theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  button.textContent = other;
  button.setAttribute("aria-label", `${other} colours`);
  repaintAll();
}

export function initTheme(button) {
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(STORAGE_KEY, chosen); } catch { /* private windows may not store anything */ }
    apply(button);
  });
  system.addEventListener("change", () => apply(button));
  apply(button);
}
