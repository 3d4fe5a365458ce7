"use strict";

/** The first iterations of a stage, one after the other: its loops with their counters, and what is
 * touched of each tensor, now and before. */
const Walk = (() => {
  const { make } = Listing;
  const SIDE = 6;
  const PAUSE = 140;

  /** The squares of `start, length, start, length, ...`. */
  function squares(runs) {
    const found = [];
    for (let at = 0; at < runs.length; at += 2) {
      for (let n = 0; n < runs[at + 1]; n += 1) found.push(runs[at] + n);
    }
    return found;
  }

  function paint(canvas, field, turn) {
    const [rows, columns] = field.squares;
    const style = getComputedStyle(canvas);
    const pen = canvas.getContext("2d");
    const fill = (cells, colour) => {
      pen.fillStyle = colour;
      for (const cell of cells) {
        pen.fillRect((cell % columns) * SIDE, Math.floor(cell / columns) * SIDE, SIDE - 1, SIDE - 1);
      }
    };
    fill(Array.from({ length: rows * columns }, (_, cell) => cell), style.columnRuleColor);
    fill(new Set(field.touched.slice(0, turn).flatMap(squares)), style.outlineColor);
    fill(squares(field.touched[turn]), style.color);
  }

  function drawn(field) {
    const [rows, columns] = field.squares;
    const [high, wide] = field.elements;
    const canvas = make("canvas", "", { width: columns * SIDE, height: rows * SIDE, role: "img" });
    const from = field.first.some((place) => place) ? ` from [${field.first.join(", ")}]` : "";
    const each = high * wide > 1 ? `, a square is ${high} x ${wide}` : "";
    const caption = `${field.written ? "writes" : "reads"} ${field.name}${from}${each}`;
    return [canvas, make("figure", "", {}, make("figcaption", "", {}, caption), canvas)];
  }

  /** The loops of a walk at one iteration. */
  function loops(walk, turn) {
    let at = 0;
    return walk.loops.map(([name, extent, kind], depth) => {
      const all = kind === "vectorized";
      const where = all ? `all ${extent} at once` : `${walk.counters[turn][at]} of ${extent}`;
      if (!all) at += 1;
      const how = kind === "serial" || all ? "" : `  (${kind})`;
      return `${"  ".repeat(depth)}for ${name} = ${where}${how}`;
    }).join("\n");
  }

  /** The elements that play it. */
  function player(walk, name) {
    const last = walk.counters.length - 1;
    const text = make("pre", "", {});
    const fields = walk.fields.map((field) => [field, ...drawn(field)]);
    const slider = make("input", "", { type: "range", min: 0, max: last, value: 0, "aria-label": "iteration" });
    const play = make("button", "", { type: "button" }, "play");
    let clock = 0;
    const show = () => {
      const turn = Number(slider.value);
      text.textContent = loops(walk, turn);
      for (const [field, canvas] of fields) paint(canvas, field, turn);
    };
    const stop = () => {
      clearInterval(clock);
      clock = 0;
      play.textContent = "play";
    };
    play.addEventListener("click", () => {
      if (clock) return stop();
      if (Number(slider.value) === last) slider.value = 0;
      play.textContent = "stop";
      clock = setInterval(() => {
        if (!slider.isConnected || Number(slider.value) >= last) return stop();
        slider.value = Number(slider.value) + 1;
        show();
      }, PAUSE);
    });
    slider.addEventListener("input", () => { stop(); show(); });
    requestAnimationFrame(show);
    const figures = make("div", "fields", {}, ...fields.map(([, , figure]) => figure));
    return [make("h2", "", {}, `${name}: its first ${last + 1} iterations`), play, slider, text, figures];
  }

  return { player, loops };
})();
