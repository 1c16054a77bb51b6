// @ts-check
// Deletion and insertion test: patches are removed or inserted in order of importance.

import { el, svg } from "../widgets/dom.js";
import { t } from "../text/translate.js";
import { set, view } from "../app/view-state.js";

const [WIDTH, HEIGHT, MARGIN] = [210, 120, 22];
export const TESTED = ["relevance", "rollout", "attention", "occlusion"];

export class Faithfulness {
  constructor() {
    this.title = el("h2");
    this.button = el("button", { type: "button", class: "toggle", onclick: () => set({ check: !view.check }) });
    this.body = el("div", { class: "curves" });
    this.hint = el("p", { class: "soft small" });
    this.root = el(
      "section",
      { class: "check" },
      el("div", { class: "head" }, this.title, this.button),
      this.body,
      this.hint,
    );
    this.translate();
  }

  translate() {
    this.title.textContent = t("check");
    this.button.textContent = t("check-button");
    this.drawn = null;
  }

  /** Draws the results for the current map, or null. */
  draw(map, found, failure) {
    this.button.setAttribute("aria-pressed", String(view.check));
    const key = `${map} ${view.check} ${failure}`;
    if (this.drawn === key && this.found === found) return;
    this.drawn = key;
    this.found = found;
    const shown = view.check && found;
    this.body.replaceChildren(...(shown ? ["deletion", "insertion"].map((kind) => figure(kind, found)) : []));
    let hint = "check-what";
    if (view.check && !TESTED.includes(map)) hint = "check-other";
    else if (shown) hint = map === "attention" ? "check-attention" : "check-read";
    else if (view.check) hint = "check-wait";
    this.hint.textContent = view.check && failure ? failure : t(hint, { map: t(`map-${map}`) });
  }
}

function figure(kind, found) {
  const { auc, curve } = found[kind];
  const random = found.random[kind].auc;
  const shares = found.shares ?? curve.map((_, step) => step / (curve.length - 1)); // fractions of patches removed or inserted
  const x = (step) => MARGIN + shares[step] * (WIDTH - MARGIN - 4);
  const y = (value) => 6 + (1 - value) * (HEIGHT - MARGIN - 6);
  const pointsOf = (values) =>
    values.map((value, step) => `${x(step).toFixed(1)},${y(Math.min(Math.max(value, 0), 1)).toFixed(1)}`);
  const points = pointsOf(curve);
  const floor = y(0).toFixed(1);
  const numbers = t("curve-numbers", { auc: auc.toFixed(3), random: random.toFixed(3) });
  const better = kind === "deletion" ? auc < random : auc > random;
  const plot = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "plot", "aria-label": `${t(kind)}: ${numbers}` },
    [0, 0.5, 1].flatMap((value) => [
      svg("line", { class: "rule", x1: MARGIN, x2: WIDTH - 4, y1: y(value), y2: y(value) }),
      svg("text", { x: MARGIN - 4, y: y(value) + 3.5, "text-anchor": "end" }, String(value)),
    ]),
    svg("polygon", { class: "area", points: `${x(0)},${floor} ${points.join(" ")} ${x(curve.length - 1)},${floor}` }),
    svg("polyline", { class: "line random", points: pointsOf(found.random[kind].curve).join(" ") }),
    svg("polyline", { class: "line", points: points.join(" ") }),
    svg("text", { x: MARGIN, y: HEIGHT - 4 }, "0%"),
    svg("text", { x: WIDTH - 4, y: HEIGHT - 4, "text-anchor": "end" }, "100%"),
  );
  return el(
    "figure",
    {},
    el("figcaption", {}, el("b", {}, t(kind)), ` ${t(`${kind}-hint`)}`),
    plot,
    el("p", { class: "small" }, numbers, " · ", t(better ? "better-than-random" : "worse-than-random")),
  );
}
