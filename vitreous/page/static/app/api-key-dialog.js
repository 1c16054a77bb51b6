// @ts-check
// Dialog for the API key. The key is stored until the tab is closed.

import { byId } from "../widgets/dom.js";

let pending = null;

/** Resolves to the key, or to null if the dialog is dismissed. Concurrent calls share one dialog. */
export function askForKey() {
  pending ??= ask().finally(() => (pending = null));
  return pending;
}

function ask() {
  const dialog = /** @type {HTMLDialogElement} */ (byId("key"));
  const field = /** @type {HTMLInputElement} */ (byId("key-field"));
  return new Promise((resolve) => {
    field.pattern = "[\\x20-\\x7E]*"; // characters that are valid in a header
    const send = () => field.reportValidity() && dialog.close(field.value);
    byId("key-send").onclick = send;
    field.onkeydown = (event) => event.key === "Enter" && send();
    dialog.onclose = () => resolve(dialog.returnValue || null);
    dialog.returnValue = "";
    dialog.showModal();
  });
}
