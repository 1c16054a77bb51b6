// Arrow keys inside a group of which only one member is reached with Tab.

/** `step(event)` answers with the member to go to, or null where the key means nothing. */
export function rove(group, step) {
  group.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = step(event);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

/** The member before or after, round in a circle: for lists, tabs and radio buttons. */
export function neighbour(members, { key, target }) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[key];
  const usable = members.filter((member) => !member.disabled);
  if (key === "Home") return usable[0];
  if (key === "End") return usable.at(-1);
  if (!step) return null;
  return usable[(usable.indexOf(target) + step + usable.length) % usable.length];
}
