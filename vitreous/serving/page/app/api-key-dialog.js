// The dialog for the API key, which is kept while the tab is open.

import { byId } from "../widgets/dom.js";

let asked = null;

/** Resolves to the key, or null if the dialog is closed. Concurrent calls share one dialog. */
export function askForKey() {
  asked ??= ask().finally(() => (asked = null));
  return asked;
}

function ask() {
  const dialog = byId("key");
  const field = byId("key-field");
  return new Promise((resolve) => {
    field.pattern = "[\\x20-\\x7E]*"; // the characters that a header may have
    const send = () => field.reportValidity() && dialog.close(field.value);
    byId("key-send").onclick = send;
    field.onkeydown = (event) => event.key === "Enter" && send();
    dialog.onclose = () => resolve(dialog.returnValue || null);
    dialog.returnValue = "";
    dialog.showModal();
  });
}
