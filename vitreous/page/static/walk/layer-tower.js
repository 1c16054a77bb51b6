// @ts-check
// The chosen patch after each layer of the model: a tower of rows on the canvas of the walk.

import { t } from "../text/translate.js";
import { drawFormula, fillBox, frameBox, scaleOf } from "./drawing.js";
import { ease, mix } from "./easing.js";
import { drawCells } from "./number-rows.js";
import { stateOf } from "./tokens.js";

export function drawTower(stage) {
  const { context, colours, data, motion, layout } = stage;
  const { tower } = layout;
  const { depth } = data.model;
  const { layer } = data.choice;
  const [from, to] = stage.name === "repeat" ? [layer + 1, depth] : [0, layer];
  const reached = mix(from, to, ease(motion, 0.12, 0.85));
  context.globalAlpha = ease(motion, 0, 0.12);
  for (let at = 0; at <= depth; at++) {
    const box = layout.towerRow(at);
    const values = stateOf(data.model, data.tensors.states.data, at);
    const known = at <= reached + 1e-6;
    if (known) drawCells(stage, { key: `tower-${at}`, values, scale: scaleOf(values) }, box, `z_{${at}}`);
    else fillBox(context, box, colours.wash);
    if (tower.line >= 11 || at % 4 === 0 || at === depth) {
      context.fillStyle = known ? colours.ink : colours.soft;
      drawFormula(context, `z_{${at}}`, box.x - 10, box.y + box.h / 2, Math.min(tower.line * 0.8, 14), "right");
    }
  }
  frameBox(context, layout.towerRow(reached), colours.accent, 2, 2);
  context.globalAlpha = 1;
  stage.write(t("walk-tower"), tower.x, tower.y - 14, { size: 11 });
}
