"use strict";

/** The tabs on the right, and the card of the chosen stage. */
const Panes = (() => {
  const { page } = Store;
  const { make } = Listing;
  const byId = (id) => document.getElementById(id);

  function button(text, title, action, name = "") {
    const element = make("button", name, { type: "button", title }, text);
    element.addEventListener("click", action);
    return element;
  }

  function stageLink(stage) {
    const link = button(page.stages[stage].name, "choose this stage", () => State.set({ stage }), "link stage");
    link.dataset.s = stage;
    return link;
  }

  /** Text and stages one after the other. */
  function sentence(head, stages) {
    const line = make("p", "", {}, `${head} `);
    stages.forEach((stage, at) => line.append(at ? ", " : "", stageLink(stage)));
    return line;
  }

  function delta({ come, gone }) {
    const box = make("span", "delta");
    if (come) box.append(make("span", "come", {}, `+${come}`));
    if (gone) box.append(make("span", "went", {}, `\u2212${gone}`));
    if (!come && !gone) box.append(make("span", "none", {}, "unchanged"));
    return box;
  }

  // Schedule: the steps, and the loop nest after one of them.
  const schedule = { list: null, slider: null, position: null, moved: null, nest: null };

  function buildSchedule(pane) {
    const slider = make("input", "slider", {
      type: "range", min: 0, max: page.steps.length - 1, "aria-label": "step of the schedule",
    });
    slider.disabled = page.steps.length < 2;
    slider.addEventListener("input", () => State.set({ step: Number(slider.value) }));
    const position = make("output", "position");
    const moved = make("output", "moved", { title: "tensors that kernels have from memory, each once" });
    const go = (by) => () => State.set({ step: State.now.step + by });
    pane.append(
      make(
        "div", "bar", {},
        button("\u00ab", "first step (Home)", () => State.set({ step: 0 })),
        button("\u2039", "step before (left arrow)", go(-1)),
        slider,
        button("\u203a", "next step (right arrow)", go(1)),
        button("\u00bb", "last step (End)", () => State.set({ step: page.steps.length - 1 })),
        position,
        moved,
      ),
    );
    const list = make("ol", "steps", { start: 0, "aria-label": "the schedule as Python" });
    page.steps.forEach((step, at) => {
      const item = make("li", "step", { "data-step": at });
      const line = button("", step.site ? `called at ${step.site}` : "", () => State.set({ step: at }));
      line.append(Listing.plain(step.python, "python"));
      if (step.site) line.append(make("span", "site", {}, step.site));
      item.append(line);
      list.append(item);
    });
    const nest = make("div", "scroll nest");
    pane.append(make("div", "split", {}, make("div", "scroll side", {}, list), nest));
    Object.assign(schedule, { list, slider, position, moved, nest });
  }

  function showSchedule() {
    const { step } = State.now;
    schedule.slider.value = step;
    schedule.position.textContent = `step ${step} of ${page.steps.length - 1}`;
    const moved = Store.moved(page.steps[step].graph);
    schedule.moved.textContent = moved && `${moved} read from memory`;
    for (const item of schedule.list.children) {
      const here = Number(item.dataset.step) === step;
      item.classList.toggle("here", here);
      item.classList.toggle("later", Number(item.dataset.step) > step);
      if (here) {
        item.setAttribute("aria-current", "step");
        item.scrollIntoView({ block: "nearest" });
      } else item.removeAttribute("aria-current");
    }
    const text = Store.nests[step];
    schedule.nest.replaceChildren(
      step ? Listing.changed(text, "nest", State.now.only) : Listing.plain(text.ids, "nest"),
    );
    bringToSight(schedule.nest, ".line.new, .line.gone");
  }

  // Loop IR: the passes, and the module after one of them.
  const ir = { list: null, what: null, text: null };

  function buildIr(pane) {
    const list = make("ol", "passes", { "aria-label": "the passes" });
    page.passes.forEach((each, at) => {
      const item = make("li", "pass", { "data-pass": at });
      const choose = button(each.name, each.what, () => State.set({ pass: at }));
      if (at) choose.append(delta(Listing.size(Store.irs[at])));
      item.append(choose);
      list.append(item);
    });
    const what = make("p", "what");
    const text = make("div", "scroll");
    if (page.refusal) pane.append(make("pre", "refusal", {}, page.refusal));
    pane.append(make("div", "split", {}, make("div", "scroll side", {}, list), make("div", "column", {}, what, text)));
    Object.assign(ir, { list, what, text });
  }

  function showIr() {
    if (!page.passes.length) return;
    const { pass } = State.now;
    for (const item of ir.list.children) {
      const here = Number(item.dataset.pass) === pass;
      item.classList.toggle("here", here);
      if (here) item.scrollIntoView({ block: "nearest" });
    }
    ir.what.textContent = page.passes[pass].what;
    const text = Store.irs[pass];
    ir.text.replaceChildren(pass ? Listing.changed(text, "ir", State.now.only) : Listing.plain(text.ids, "ir"));
    bringToSight(ir.text, ".line.new, .line.gone");
  }

  // Code: what was generated, under the figures of the kernels.
  function buildCode(at) {
    return (pane) => {
      const code = page.code[at];
      if (page.resources) pane.append(table(page.resources));
      pane.append(make("div", "scroll", {}, Listing.plain(code.lines, code.language)));
    };
  }

  /** Figures; what is warned of and is not 0, such as spills, stands out. */
  function table({ head, rows, warned }) {
    const bad = (text, at) => (warned.includes(at) && /[1-9]/.test(text) ? "bad" : "");
    const cells = (tag, row) =>
      make("tr", "", {}, ...row.map((text, at) => make(tag, tag === "td" ? bad(text, at) : "", {}, text)));
    const body = make("tbody", "", {}, ...rows.map((row) => cells("td", row)));
    return make("div", "figures", {}, make("table", "", {}, make("thead", "", {}, cells("th", head)), body));
  }

  function buildFusion(pane) {
    const scroll = make("div", "scroll told");
    for (const { title, text } of page.explanation) {
      scroll.append(make("h2", "", {}, title), make("pre", "", {}, text));
    }
    pane.append(scroll);
  }

  function buildRoofline(pane) {
    const { roofline } = page;
    const scroll = make("div", "scroll told");
    scroll.append(make("h2", "", {}, `${roofline.device}, by the model`));
    const seen = Roof.placed(roofline);
    if (seen.length) scroll.append(Roof.picture(roofline, (stage) => State.set({ stage })));
    const none = "nothing here computes with floats: memory alone counts";
    scroll.append(make("pre", "", {}, seen.map((point) => Roof.told(roofline, point)).join("\n") || none));
    pane.append(scroll);
  }

  function buildOrder(pane) {
    pane.append(make("div", "scroll told walk", {}));
  }

  /** The walk of the chosen stage, or of the last that has one. */
  function showOrder() {
    const walk = page.walks.find(({ stage }) => stage === State.now.stage) ?? page.walks.at(-1);
    byId("pane-order").firstChild.replaceChildren(...Walk.player(walk, page.stages[walk.stage].name));
  }

  const builders = {
    schedule: buildSchedule, ir: buildIr, fusion: buildFusion, roofline: buildRoofline, order: buildOrder,
  };
  const showers = { schedule: showSchedule, ir: showIr, order: showOrder };
  const built = new Map();

  /** Lines that the tab shows now, by number. */
  function idsOf(tab) {
    if (tab.key === "schedule") {
      return [...page.steps.flatMap((step) => step.python), ...Store.nests[State.now.step].ids];
    }
    if (tab.key === "ir") return page.passes.length ? Store.irs[State.now.pass].ids : [];
    return "code" in tab ? page.code[tab.code].lines : [];
  }

  function buildTabs() {
    const bar = byId("tabs");
    State.tabs.forEach((tab, at) => {
      const choose = button(tab.title, `${tab.title} (${at + 1})`, () => State.set({ tab: tab.key }), "tab");
      choose.id = `tab-${tab.key}`;
      choose.setAttribute("role", "tab");
      choose.setAttribute("aria-controls", `pane-${tab.key}`);
      choose.append(make("span", "badge"));
      bar.append(choose);
      const pane = make("section", "pane", { id: `pane-${tab.key}`, role: "tabpanel", "aria-labelledby": choose.id });
      pane.hidden = true;
      byId("panes").append(pane);
    });
  }

  function show(now, changed) {
    for (const tab of State.tabs) {
      const here = tab.key === now.tab;
      const pane = byId(`pane-${tab.key}`);
      pane.hidden = !here;
      byId(`tab-${tab.key}`).setAttribute("aria-selected", here);
      if (!here) continue;
      const first = !built.has(tab.key);
      if (first) {
        (builders[tab.key] ?? buildCode(tab.code))(pane);
        built.set(tab.key, "");
      }
      const seen = tab.key === "order" ? `${now.stage}` : `${now.step} ${now.pass} ${now.only}`;
      if (showers[tab.key] && built.get(tab.key) !== seen) {
        built.set(tab.key, seen);
        showers[tab.key]();
      }
    }
    byId("only").setAttribute("aria-pressed", now.only);
    if (now.stage >= 0 && (changed.has("tab") || changed.has("stage"))) comeToStage();
    if (changed.has("stage") || changed.has("step") || changed.has("pass")) showStage();
  }

  /** The card of the chosen stage, and how often each tab names it. */
  function showStage() {
    const { stage, step } = State.now;
    for (const tab of State.tabs) {
      const count = stage < 0 ? 0 : Store.count(idsOf(tab), stage);
      byId(`tab-${tab.key}`).querySelector(".badge").textContent = count || "";
    }
    const card = byId("card");
    card.hidden = stage < 0;
    if (stage < 0) return;
    const graph = Store.graphs[page.steps[step].graph];
    const place = graph.nodes.findIndex((node) => node.stage === stage);
    const node = graph.nodes[place];
    const head = make("p", "head", {}, make("b", "", {}, page.stages[stage].name), ` ${node?.type ?? ""} `);
    head.append(make("span", "where", {}, node ? node.where || node.kind : "not there at this step"));
    head.append(button("\u2715", "let go of this stage (Esc)", () => State.set({ stage: -1 }), "close"));
    card.replaceChildren(head, make("pre", "", {}, page.stages[stage].definition));
    if (node) {
      const reads = graph.edges.filter((edge) => edge[1] === place).map((edge) => graph.nodes[edge[0]].stage);
      const read = graph.edges.filter((edge) => edge[0] === place).map((edge) => graph.nodes[edge[1]].stage);
      if (reads.length) card.append(sentence("reads", reads));
      if (read.length) card.append(sentence("is read by", read));
    }
    const own = page.steps.map((each, at) => [each, at]).filter(([each]) => each.stage === stage);
    if (own.length) {
      const line = make("p", "", {}, "steps ");
      own.forEach(([, at], place) => {
        const go = button(String(at), "go to this step", () => State.set({ step: at, tab: "schedule" }), "link");
        line.append(place ? ", " : "", go);
      });
      card.append(line);
    }
  }

  /** Scroll to the next (or the last) line that names the chosen stage, in the pane that is open. */
  function occurrence(by) {
    const { stage, tab } = State.now;
    if (stage < 0) return;
    const pane = byId(`pane-${tab}`);
    const found = [...pane.querySelectorAll(`.line[data-s~="${stage}"]`)];
    if (!found.length) return;
    const old = found.findIndex((line) => line.classList.contains("at"));
    const next = (old + by + found.length + (old < 0 && by < 0 ? 1 : 0)) % found.length;
    select(found[next]);
  }

  /** Scroll to the first of the lines that fit, if none of them is in sight. */
  function bringToSight(scroll, selector) {
    const { top, bottom } = scroll.getBoundingClientRect();
    const lines = [...scroll.querySelectorAll(selector)];
    const seen = lines.some((line) => {
      const box = line.getBoundingClientRect();
      return box.bottom > top && box.top < bottom;
    });
    if (lines.length && !seen) lines[0].scrollIntoView({ block: "center" });
  }

  /** Show where the chosen stage is in the pane that is open. */
  function comeToStage() {
    for (const scroll of byId(`pane-${State.now.tab}`).querySelectorAll(".scroll")) {
      bringToSight(scroll, `.line[data-s~="${State.now.stage}"]`);
    }
  }

  /** Mark one line and bring it into sight. */
  function select(line) {
    document.querySelectorAll(".line.at").forEach((each) => each.classList.remove("at"));
    line.classList.add("at");
    line.scrollIntoView({ block: "center" });
  }

  /** The elements of the lines of a tab that is open. */
  function linesOf(tab) {
    const pane = byId(`pane-${tab}`);
    const inside = { schedule: ".nest", ir: ".column" }[tab];
    return [...(inside ? pane.querySelector(inside) : pane).querySelectorAll(".line:not(.gone)")];
  }

  return { buildTabs, show, occurrence, select, linesOf, table };
})();
