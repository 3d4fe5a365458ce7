"use strict";

/** The graph as SVG, which can be moved and zoomed. */
const Picture = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NAME = 7.6; // width of a letter of a name, of a line below it
  const SMALL = 6.3;
  const LONGEST = 34;
  const TOOLS = 46; // height of the buttons over the graph
  const LEAST = 0.6; // the scale below which nobody can read the names

  function draw(tag, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const short = (text) =>
    text.length <= LONGEST ? text : `${text.slice(0, LONGEST / 2)}\u2026${text.slice(-LONGEST / 2 + 1)}`;

  const label = (node) => short(Store.page.stages[node.stage].name);

  /** The lines below the name. */
  function below(node) {
    return [node.type, node.where].filter(Boolean).map(short);
  }

  function sizeOf(node) {
    const lines = below(node);
    const letters = Math.max(label(node).length * NAME, ...lines.map((text) => text.length * SMALL));
    return { w: Math.max(64, letters + 22), h: 24 + 14 * lines.length };
  }

  const known = new Map();

  /** The layout of graph number `at`, made once. */
  function layoutOf(at) {
    if (!known.has(at)) {
      const graph = Store.graphs[at];
      known.set(at, Layout.place(graph, graph.nodes.map(sizeOf)));
    }
    return known.get(at);
  }

  function nodeElement(node, { x, y, w, h }) {
    const info = Store.page.stages[node.stage];
    const element = draw("g", {
      class: `node is-${node.kind} at-${node.place}${node.output ? " is-output" : ""}`,
      "data-s": node.stage,
      tabindex: 0,
      role: "button",
      "aria-label": `${info.name}, ${node.kind}, ${node.type}, ${node.where || "input"}`,
    });
    element.append(draw("title", {}, info.definition || info.name));
    const round = node.kind === "input" || node.kind === "state" ? h / 2 : 5;
    element.append(draw("rect", { class: "box", x: x - w / 2, y: y - h / 2, width: w, height: h, rx: round }));
    const lines = below(node);
    element.append(draw("text", { class: "name", x, y: y - h / 2 + 17 }, label(node)));
    lines.forEach((text, at) => {
      element.append(draw("text", { class: "small", x, y: y - h / 2 + 32 + 14 * at }, text));
    });
    return element;
  }

  function boxElement({ cluster, x, y, w, h }) {
    return draw("rect", { class: "cluster", "data-c": cluster, x, y, width: w, height: h, rx: 9 });
  }

  /** The title of a box, as much of it as there is room for; drawn above the edges. */
  function titleElement({ cluster, x, y, w }) {
    const { name } = Store.page.stages[cluster];
    const room = Math.floor((w - 22) / SMALL);
    const text = `kernel ${name}`.length <= room ? `kernel ${name}` : "kernel";
    return draw("text", { class: "cluster-title", x: x + 11, y: y + 16 }, text);
  }

  /** The bytes that go along the edges through memory, where each begins; those of one tensor that
   * several kernels read below each other. */
  function bytesElements(edges, placed) {
    const starts = new Map();
    return edges.flatMap(([maker, , count], at) => {
      if (!count) return [];
      const { x, y } = placed[at].points[0];
      const row = starts.get(maker) ?? 0;
      starts.set(maker, row + 1);
      return [draw("text", { class: "bytes", x: x + 5, y: y + 12 + 11 * row }, Store.bytes(count))];
    });
  }

  /** The picture of graph number `at`. */
  function drawing(at) {
    const graph = Store.graphs[at];
    const found = layoutOf(at);
    const edges = found.edges.map((edge) =>
      draw("path", {
        class: "edge",
        d: Layout.curve(edge.points),
        "data-s": `${graph.nodes[edge.from].stage} ${graph.nodes[edge.to].stage}`,
        "marker-end": "url(#arrow)",
      }),
    );
    const nodes = graph.nodes.map((node, place) => nodeElement(node, found.nodes[place]));
    const bytes = bytesElements(graph.edges, found.edges);
    const under = [...found.boxes.map(boxElement), ...edges, ...found.boxes.map(titleElement)];
    return draw("g", {}, ...under, ...bytes, ...nodes);
  }

  /** The part of the page that shows the graph. */
  function Canvas(holder) {
    const arrow = draw(
      "marker",
      { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" },
      draw("path", { class: "head", d: "M0,1 L7,4 L0,7 z" }),
    );
    const world = draw("g", { class: "world" });
    const svg = draw("svg", { class: "graph", "aria-label": "the graph of stages" }, draw("defs", {}, arrow), world);
    holder.append(svg);
    let shown = -1;
    let moved = false;
    let [x, y, scale] = [0, 0, 1];

    const apply = () => world.setAttribute("transform", `translate(${x},${y}) scale(${scale})`);

    /** Show all of it, or its top where it would be too small. */
    function fit(whole = false) {
      const { width, height } = layoutOf(shown);
      const room = svg.getBoundingClientRect();
      if (!room.width || !room.height) return;
      const all = Math.min((room.width - 24) / width, (room.height - 24) / height, 1.25);
      scale = whole ? all : Math.max(all, LEAST);
      x = (room.width - width * scale) / 2;
      const spare = (room.height - height * scale) / 2;
      y = spare > TOOLS || whole ? Math.max(spare, 12) : TOOLS; // the buttons hide nothing
      moved = false;
      apply();
    }

    function zoom(factor, at) {
      const room = svg.getBoundingClientRect();
      const px = at ? at.clientX - room.left : room.width / 2;
      const py = at ? at.clientY - room.top : room.height / 2;
      const next = Math.min(4, Math.max(0.05, scale * factor));
      x = px - ((px - x) * next) / scale;
      y = py - ((py - y) * next) / scale;
      scale = next;
      moved = true;
      apply();
    }

    /** Show graph number `at`. */
    function show(at) {
      if (at === shown) return;
      shown = at;
      world.replaceChildren(drawing(at));
      if (!moved) fit();
    }

    /** Bring a stage into sight. */
    function reveal(stage) {
      const place = Store.graphs[shown].nodes.findIndex((node) => node.stage === stage);
      if (place < 0) return;
      const node = layoutOf(shown).nodes[place];
      const room = svg.getBoundingClientRect();
      const [px, py] = [node.x * scale + x, node.y * scale + y];
      if (px > 30 && py > 30 && px < room.width - 30 && py < room.height - 30) return;
      x += room.width / 2 - px;
      y += room.height / 2 - py;
      moved = true;
      apply();
    }

    svg.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        zoom(Math.exp(-event.deltaY * 0.0015), event);
      },
      { passive: false },
    );
    let from = null;
    svg.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX - x, y: event.clientY - y, startX: event.clientX, startY: event.clientY };
    });
    svg.addEventListener("pointermove", (event) => {
      if (!from || event.buttons === 0) return;
      const far = Math.hypot(event.clientX - from.startX, event.clientY - from.startY) > 4;
      if (!far && !svg.classList.contains("dragged")) return;
      if (!svg.hasPointerCapture(event.pointerId)) svg.setPointerCapture(event.pointerId);
      svg.classList.add("dragged");
      [x, y] = [event.clientX - from.x, event.clientY - from.y];
      moved = true;
      apply();
    });
    svg.addEventListener("pointerup", () => {
      from = null;
      setTimeout(() => svg.classList.remove("dragged"));
    });
    return { svg, show, fit, zoom, reveal, wasMoved: () => moved };
  }

  return { Canvas };
})();
