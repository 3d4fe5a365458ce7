"use strict";

/** What is being looked at.  Every change goes through `State.set`; the address keeps it, so that a
 * link to the file can point at a step. */
const State = (() => {
  const { page } = Store;
  const tabs = [
    { key: "schedule", title: "Schedule" },
    { key: "ir", title: "Loop IR" },
    ...page.code.map((code, at) => ({ key: `code${at}`, title: code.title, code: at })),
    ...(page.explanation.length ? [{ key: "fusion", title: "Fusion" }] : []),
    ...(page.walks.length ? [{ key: "order", title: "Loop order" }] : []),
    ...(page.roofline ? [{ key: "roofline", title: "Roofline" }] : []),
  ];
  const now = {
    tab: "schedule",
    step: page.steps.length - 1,
    pass: Math.max(0, page.passes.length - 1),
    stage: -1,
    only: false,
    wrap: true,
    theme: "",
  };
  const listeners = [];
  const clamp = (value, size) => Math.min(Math.max(0, value), Math.max(0, size - 1));

  /** Change some of it and tell everybody what changed. */
  function set(changes) {
    const next = { ...changes };
    if ("step" in next) next.step = clamp(next.step, page.steps.length);
    if ("pass" in next) next.pass = clamp(next.pass, page.passes.length);
    const changed = new Set(Object.keys(next).filter((key) => now[key] !== next[key]));
    if (!changed.size) return;
    Object.assign(now, next);
    write();
    for (const listener of listeners) listener(now, changed);
  }

  function write() {
    if (location.protocol === "about:") return; // the frame of a notebook has no address
    const parts = new URLSearchParams({ tab: now.tab, step: now.step, pass: now.pass });
    if (now.stage >= 0) parts.set("stage", page.stages[now.stage].name);
    if (now.only) parts.set("only", "1");
    if (!now.wrap) parts.set("wrap", "0");
    if (now.theme) parts.set("theme", now.theme);
    history.replaceState(null, "", `#${parts}`);
  }

  /** What the address says. */
  function read() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const found = {};
    const whole = (key) => /^\d+$/.test(parts.get(key) ?? "");
    if (tabs.some((tab) => tab.key === parts.get("tab"))) found.tab = parts.get("tab");
    if (whole("step")) found.step = Number(parts.get("step"));
    if (whole("pass")) found.pass = Number(parts.get("pass"));
    if (parts.has("stage")) {
      found.stage = page.stages.findIndex((stage) => stage.name === parts.get("stage"));
    }
    if (parts.get("only") === "1") found.only = true;
    if (parts.has("wrap")) found.wrap = parts.get("wrap") !== "0";
    if (["light", "dark"].includes(parts.get("theme"))) found.theme = parts.get("theme");
    return found;
  }

  return { now, tabs, set, read, listen: (listener) => listeners.push(listener) };
})();
