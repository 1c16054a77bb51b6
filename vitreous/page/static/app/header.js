// @ts-check
// The buttons at the top of the page.

import { byId } from "../widgets/dom.js";
import { currentLanguage, setLanguage, t } from "../text/translate.js";
import { setAndPush, view, writeAddress } from "./view-state.js";

const READ = 2500; // milliseconds to show "Link copied"

export class Header {
  constructor(app) {
    this.app = app;
    byId("notice-close").addEventListener("click", () => app.fail(null));
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the fragment of the URL holds the view
      byId("panes").focus();
    });
    byId("walk-button").addEventListener("click", () => app.walk.start().catch((error) => app.fail(error)));
    byId("language").addEventListener("click", () => {
      setLanguage(currentLanguage() === "en" ? "zh" : "en");
      app.translate();
    });
    byId("theme").addEventListener("click", changeTheme);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.walk.recolour());
    byId("share").addEventListener("click", copyLink);
    byId("compare").addEventListener("click", () => {
      const [first] = view.models;
      const other = app.models.find((model) => model.id !== first);
      setAndPush({ models: view.models.length > 1 ? [first] : [first, other.id] });
    });
  }

  /** Shows the compare button if there is more than one model. */
  draw() {
    byId("compare").hidden = !this.app.models || this.app.models.length < 2;
    byId("compare").setAttribute("aria-pressed", String(view.models.length > 1));
  }
}

function changeTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // Storage is disabled. The theme is not remembered.
  }
}

async function copyLink() {
  writeAddress();
  const button = byId("share");
  if (navigator.share && matchMedia("(pointer: coarse)").matches) {
    await navigator.share({ title: document.title, url: location.href }).catch(() => null); // dismissed
    return;
  }
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = t("copied");
  } catch {
    button.textContent = t("copy-by-hand"); // the clipboard API needs HTTPS or localhost
  }
  setTimeout(() => (button.textContent = t("share")), READ);
}
