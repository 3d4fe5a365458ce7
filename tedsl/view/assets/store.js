"use strict";

/** The data of the page, with texts put together and lines taken apart.  See `data.py`. */
const Store = (() => {
  const page = JSON.parse(document.getElementById("data").textContent);

  /** `{text, marks: [{start, length, stage}]}` for each line of the table. */
  const lines = page.lines.map((line) => {
    if (typeof line === "string") return { text: line, marks: [] };
    const marks = [];
    for (let at = 1; at < line.length; at += 3) {
      marks.push({ start: line[at], length: line[at + 1], stage: line[at + 2] });
    }
    return { text: line[0], marks };
  });

  /** Texts told by the one before: for each `{ids, parts}`, where a part is `{kind, ids}` and kind
   * is "same", "gone" or "new". */
  function told(sequence) {
    let before = [];
    return sequence.map((changes) => {
      const ids = [];
      const parts = [];
      let at = 0;
      for (const change of changes) {
        if (Array.isArray(change)) {
          ids.push(...change);
          parts.push({ kind: "new", ids: change });
          continue;
        }
        const taken = before.slice(at, at + Math.abs(change));
        at += taken.length;
        if (change > 0) ids.push(...taken);
        parts.push({ kind: change > 0 ? "same" : "gone", ids: taken });
      }
      before = ids;
      return { ids, parts };
    });
  }

  const nests = told(page.steps.map((step) => step.nest));
  const irs = told(page.passes.map((each) => each.text));

  const graphs = page.graphs.map((graph) => ({
    nodes: graph.nodes.map(([stage, kind, type, place, where, cluster, output]) => ({
      stage, kind, type, place, where, cluster, output,
    })),
    edges: graph.edges,
  }));

  /** Bytes in words; nothing for what does not go through memory. */
  function bytes(count) {
    if (count <= 0) return count < 0 ? "?" : "";
    const at = Math.min(4, Math.floor(Math.log10(count) / 3));
    return `${Number((count / 1000 ** at).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][at]}`;
  }

  /** What the kernels of a graph read from memory; nothing where a call gives the sizes. */
  function moved(at) {
    const each = graphs[at].edges.map((edge) => edge[2]);
    return each.includes(-1) ? "" : bytes(each.reduce((sum, count) => sum + count, 0));
  }

  /** The stages that a line names, each once. */
  function stagesOf(id) {
    return [...new Set(lines[id].marks.map((mark) => mark.stage))];
  }

  /** How many lines of `{kind, ids}` parts, or of ids, name the stage. */
  function count(ids, stage) {
    let found = 0;
    for (const id of ids) if (lines[id].marks.some((mark) => mark.stage === stage)) found += 1;
    return found;
  }

  return { page, lines, nests, irs, graphs, bytes, moved, stagesOf, count };
})();
