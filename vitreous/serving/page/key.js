// A server that wants a key is given it once, for as long as the tab is open.

import { byId } from "./dom.js";

let asked = null;

/** The key, or null where nobody gives one. Several who ask at a time get the same answer. */
export function askForKey() {
  asked ??= ask().finally(() => (asked = null));
  return asked;
}

function ask() {
  const dialog = byId("key");
  const field = byId("key-field");
  return new Promise((resolve) => {
    field.pattern = "[\\x20-\\x7E]*"; // no key has other characters, and no header may
    const send = () => field.reportValidity() && dialog.close(field.value);
    byId("key-send").onclick = send;
    field.onkeydown = (event) => event.key === "Enter" && send();
    dialog.onclose = () => resolve(dialog.returnValue || null);
    dialog.returnValue = "";
    dialog.showModal();
  });
}
