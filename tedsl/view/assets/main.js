"use strict";

/** Puts the page together: head, graph, tabs, pointing, keys. */
(() => {
  const { page } = Store;
  const { make } = Listing;
  const byId = (id) => document.getElementById(id);

  // Head.
  byId("title").textContent = page.title;
  byId("subject").textContent = `${page.subject} for ${page.target}`;
  for (const [name, value] of page.facts) {
    byId("facts").append(make("span", "fact", { title: value }, make("i", "", {}, name), ` ${value}`));
  }
  byId("facts").append(make("span", "fact", {}, make("i", "", {}, "tedsl"), ` ${page.version}`));

  // Graph.
  const canvas = Picture.Canvas(byId("graph"));
  byId("zoom-in").addEventListener("click", () => canvas.zoom(1.25));
  byId("zoom-out").addEventListener("click", () => canvas.zoom(0.8));
  byId("fit").addEventListener("click", () => canvas.fit(true));
  new ResizeObserver(() => canvas.wasMoved() || canvas.fit()).observe(canvas.svg);

  // Pointing at a stage: one rule of style for everything that has its number.
  const rules = (stage, name) =>
    stage < 0
      ? ""
      : `.stage[data-s~="${stage}"]{background:var(--${name});color:var(--${name}-ink);border-radius:3px}` +
        `.line[data-s~="${stage}"]{box-shadow:inset 3px 0 var(--${name}-line)}` +
        `.line[data-w~="${stage}"]{background:var(--${name}-soft)}` +
        `.node[data-s~="${stage}"] .box{stroke:var(--${name}-line);stroke-width:3;fill:var(--${name})}` +
        `.node[data-s~="${stage}"] text{fill:var(--${name}-ink)}` +
        `.edge[data-s~="${stage}"]{stroke:var(--${name}-line);stroke-width:2.2;opacity:1}`;
  const stageAt = (target) => {
    const element = target.closest?.(".stage[data-s], .node[data-s]");
    return element ? Number(element.dataset.s) : -1;
  };
  /** The stage pointed at, or the one that the whole line pointed at is for. */
  const pointedAt = (target) => {
    const stage = stageAt(target);
    const line = stage < 0 ? target.closest?.(".line[data-w]") : null;
    return line ? Number(line.dataset.w.split(" ")[0]) : stage;
  };
  let pointed = -1;
  const point = (stage) => {
    if (stage === pointed) return;
    pointed = stage;
    byId("hover").textContent = rules(stage, "hover");
    byId("status").textContent = stage < 0 ? "" : page.stages[stage].definition || page.stages[stage].name;
  };
  document.addEventListener("pointerover", (event) => point(pointedAt(event.target)));
  document.addEventListener("focusin", (event) => point(stageAt(event.target)));
  document.addEventListener("click", (event) => {
    const stage = stageAt(event.target);
    if (stage < 0 || canvas.svg.classList.contains("dragged")) return;
    if (event.target.closest(".link")) return;
    State.set({ stage: stage === State.now.stage ? -1 : stage });
  });
  function showWrap({ wrap }) {
    document.documentElement.dataset.wrap = wrap ? "yes" : "";
    byId("wrap").setAttribute("aria-pressed", wrap);
  }
  State.listen((now, changed) => {
    const step = page.steps[now.step];
    canvas.show(step.graph);
    if (changed.has("step")) canvas.reveal(step.stage);
    if (changed.has("stage")) {
      byId("pinned").textContent = rules(now.stage, "pin");
      if (now.stage >= 0) canvas.reveal(now.stage);
    }
    showWrap(now);
    if (changed.has("theme")) document.documentElement.dataset.theme = now.theme;
  });
  State.listen(Panes.show);

  // Theme and help.
  const dark = () =>
    State.now.theme ? State.now.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const turn = () => State.set({ theme: dark() ? "light" : "dark" });
  byId("theme").addEventListener("click", turn);
  const help = byId("help");
  byId("keys").addEventListener("click", () => help.showModal());
  help.addEventListener("click", () => help.close());
  const onlyChanges = () => State.set({ only: !State.now.only });
  byId("only").addEventListener("click", onlyChanges);
  const wrapLines = () => State.set({ wrap: !State.now.wrap });
  byId("wrap").addEventListener("click", wrapLines);

  // Keys.
  const along = (by) =>
    State.now.tab === "ir" ? State.set({ pass: State.now.pass + by }) : State.set({ step: State.now.step + by });
  const keys = {
    ArrowLeft: () => along(-1),
    ArrowRight: () => along(1),
    Home: () => along(-Infinity),
    End: () => along(Infinity),
    "/": Search.focus,
    n: () => Panes.occurrence(1),
    N: () => Panes.occurrence(-1),
    c: onlyChanges,
    w: wrapLines,
    f: () => canvas.fit(true),
    "+": () => canvas.zoom(1.25),
    "-": () => canvas.zoom(0.8),
    t: turn,
    "?": () => help.showModal(),
    Escape: () => State.set({ stage: -1 }),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const { target } = event;
    if (target.id === "search") return;
    if (event.key === "Enter" && target.closest(".node")) {
      State.set({ stage: Number(target.dataset.s) });
      return;
    }
    const tab = /^[1-9]$/.test(event.key) ? State.tabs[Number(event.key) - 1] : null;
    if (tab) State.set({ tab: tab.key });
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });
  Search.listen();

  // The line between graph and tabs.
  const divider = byId("divider");
  divider.addEventListener("pointerdown", (event) => {
    divider.setPointerCapture(event.pointerId);
    divider.onpointermove = (move) => {
      const share = (100 * move.clientX) / window.innerWidth;
      document.documentElement.style.setProperty("--graph", `${Math.min(75, Math.max(15, share))}%`);
    };
  });
  divider.addEventListener("pointerup", () => (divider.onpointermove = null));

  // Begin with what the address says.
  Panes.buildTabs();
  showWrap(State.now);
  const everything = new Set(Object.keys(State.now));
  Object.assign(State.now, { stage: -1 });
  canvas.show(page.steps[State.now.step].graph);
  Panes.show(State.now, everything);
  State.set(State.read());
  window.addEventListener("hashchange", () => State.set(State.read()));
  document.documentElement.dataset.ready = "yes";
})();
