"use strict";

/** Search in everything: stages, steps, the loop nest, the loop IR, the code. */
const Search = (() => {
  const { page } = Store;
  const { make } = Listing;
  const MOST = 12; // results shown of one kind

  /** What there is to find: a title, the texts, and how to go to one of them. */
  function places() {
    const { step, pass } = State.now;
    const lineOf = (tab, at, changes = {}) => () => {
      State.set({ tab, only: false, ...changes });
      const line = Panes.linesOf(tab)[at];
      if (line) Panes.select(line);
    };
    const texts = (ids) => ids.map((id) => Store.lines[id].text);
    return [
      {
        title: "stages",
        texts: page.stages.map((stage) => stage.definition || stage.name),
        names: page.stages.map((stage) => stage.name),
        go: (at) => () => State.set({ stage: at }),
      },
      {
        title: "steps",
        texts: page.steps.map((each) => `${texts(each.python).join(" ; ")}  ${each.site}`),
        go: (at) => () => State.set({ tab: "schedule", step: at }),
      },
      {
        title: "loop nest",
        texts: page.steps.length ? texts(Store.nests[step].ids) : [],
        go: (at) => lineOf("schedule", at),
      },
      {
        title: page.passes.length ? `loop IR after ${page.passes[pass].name}` : "loop IR",
        texts: page.passes.length ? texts(Store.irs[pass].ids) : [],
        go: (at) => lineOf("ir", at),
      },
      ...page.code.map((code, number) => ({
        title: code.title,
        texts: texts(code.lines),
        go: (at) => lineOf(`code${number}`, at),
      })),
    ];
  }

  /** `[{title, total, hits: [{number, text, start, go}]}]` for what is found of `wanted`. */
  function find(wanted) {
    const low = wanted.toLowerCase();
    const found = [];
    for (const { title, texts, names, go } of places()) {
      const hits = [];
      let total = 0;
      texts.forEach((text, at) => {
        const start = text.toLowerCase().indexOf(low);
        if (start < 0 && !names?.[at].toLowerCase().includes(low)) return;
        total += 1;
        if (hits.length < MOST) hits.push({ number: at, text, start, go: go(at) });
      });
      if (total) found.push({ title, total, hits });
    }
    return found;
  }

  const input = document.getElementById("search");
  const results = document.getElementById("results");
  let at = -1;

  const items = () => [...results.querySelectorAll(".hit")];

  function shown({ number, text, start }, wanted) {
    const begin = Math.max(0, start - 30);
    const line = make("span", "found");
    if (start < 0) line.append(text.slice(0, 120));
    else {
      line.append(
        `${begin ? "\u2026" : ""}${text.slice(begin, start).trimStart()}`,
        make("mark", "", {}, text.slice(start, start + wanted.length)),
        text.slice(start + wanted.length, start + 110),
      );
    }
    return [make("span", "place", {}, String(number + 1)), line];
  }

  function update() {
    const wanted = input.value.trim();
    at = -1;
    results.replaceChildren();
    results.hidden = !wanted;
    input.setAttribute("aria-expanded", Boolean(wanted));
    if (!wanted) return;
    const found = find(wanted);
    if (!found.length) results.append(make("p", "nothing", {}, "nothing found"));
    for (const { title, total, hits } of found) {
      results.append(make("p", "group", {}, `${title}: ${total}`));
      for (const hit of hits) {
        const item = make("div", "hit", { role: "option", tabindex: -1 }, ...shown(hit, wanted));
        item.addEventListener("click", () => {
          close();
          hit.go();
        });
        results.append(item);
      }
    }
  }

  function close() {
    results.hidden = true;
    input.setAttribute("aria-expanded", false);
    input.blur();
  }

  function move(by) {
    const all = items();
    if (!all.length) return;
    at = (at + by + all.length) % all.length;
    all.forEach((item, place) => item.setAttribute("aria-selected", place === at));
    all[at].scrollIntoView({ block: "nearest" });
  }

  function listen() {
    input.addEventListener("input", update);
    input.addEventListener("focus", update);
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") move(1);
      else if (event.key === "ArrowUp") move(at < 0 ? 0 : -1);
      else if (event.key === "Enter") items()[Math.max(0, at)]?.click();
      else if (event.key === "Escape") {
        input.value = "";
        close();
      } else return;
      event.preventDefault();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!results.contains(event.target) && event.target !== input) results.hidden = true;
    });
  }

  return { listen, focus: () => input.select() };
})();
