// @ts-check
// Name, size and origin of a model.

import { el } from "../widgets/dom.js";
import { millions, t } from "../text/translate.js";
import { setAndPush, view } from "../app/view-state.js";

const times = ([height, width]) => `${width} × ${height}`;

/** Number of heads, which differs between the stages of a Swin Transformer. */
const headsOf = ({ layers, heads }) => (layers[0].heads === heads ? heads : `${layers[0].heads}–${heads}`);

/** Id of a checkpoint, and family, size and patch of the model, e.g. "pets · ViT-S/16". */
const nameOf = ({ id, architecture }) => (architecture === id ? id : `${id} · ${architecture}`);

/** Heading of a pane, or a menu if there are several models. */
export class ModelFacts {
  constructor(model, models, number) {
    this.model = model;
    const chooser = el(
      "select",
      { class: "model", onchange: (event) => setAndPush({ models: view.models.with(number, event.target.value) }) },
      models.map((each) => el("option", { value: each.id, selected: each.id === model.id }, nameOf(each))),
    );
    this.chooser = models.length > 1 ? chooser : null;
    this.list = el("ul", { class: "facts" });
    this.root = el("div", { class: "about" }, el("h1", { title: model.name }, this.chooser ?? nameOf(model)), this.list);
    this.translate();
  }

  translate() {
    const { model } = this;
    this.chooser?.setAttribute("aria-label", t("choose-model"));
    const facts = [
      t("fact-size", { size: times(model.image_size) }),
      model.patch_size && t("fact-patch", { patch: times(model.patch_size) }),
      model.heads ? t("fact-layers", { depth: model.depth, heads: headsOf(model), width: model.width }) : null,
      t("fact-parameters", { count: millions(model.parameters) }),
      model.classes
        ? t(model.task === "regress" ? "fact-numbers" : "fact-classes", { count: model.classes })
        : t("fact-no-head"),
      model.origin && t("fact-origin", { origin: model.origin }),
    ];
    this.list.replaceChildren(...facts.filter(Boolean).map((fact) => el("li", {}, fact)));
  }
}
