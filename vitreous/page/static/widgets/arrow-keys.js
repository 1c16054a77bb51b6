// @ts-check
// Arrow-key navigation within a group that is a single tab stop.

/** `step(event)` returns the element to focus, or null to ignore the key. */
export function onArrowKeys(group, step) {
  group.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = step(event);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

/** Returns the previous or next member, wrapping around, for lists, tabs and radio buttons. */
export function neighbour(members, { key, target }) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[key];
  const usable = members.filter((member) => !member.disabled);
  if (key === "Home") return usable[0];
  if (key === "End") return usable.at(-1);
  if (!step) return null;
  return usable[(usable.indexOf(target) + step + usable.length) % usable.length];
}
