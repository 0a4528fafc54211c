// Light or dark: as the system has it, until a person says otherwise.
import { inked } from "./ink.js";

const KEPT = "regard-theme", system = matchMedia("(prefers-color-scheme: dark)");
let chosen = kept();

function kept() {
  try { return localStorage.getItem(KEPT); } catch { return null; }
}

function apply(button) {
  const theme = chosen ?? (system.matches ? "dark" : "light"), other = theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  button.textContent = other;
  button.setAttribute("aria-label", `${other} colours`);
  inked();
}

export function themes(button) {
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(KEPT, chosen); } catch { /* private windows may keep nothing */ }
    apply(button);
  });
  system.addEventListener("change", () => apply(button));
  apply(button);
}
