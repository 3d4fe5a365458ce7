"use strict";

/** Where the nodes of a graph go: layers from top to bottom, the nodes of one kernel in a box.
 *
 * Each kernel is laid out by itself, with ports on its border for what it reads and gives; then the
 * kernels are laid out as if each were one node.  Pure functions of numbers. */
const Layout = (() => {
  const GAP_X = 22;
  const GAP_Y = 40;
  const PAD = 14;
  const HEAD = 20;
  const SWEEPS = 8;

  /** Layers of vertices `{w, h, first, last}` (`first`: in the top layer, `last`: in the bottom
   * one) joined by edges `{from, to, out, in}`, where `out` and `in` are how far from the middle of
   * a vertex the edge leaves and enters it.
   *
   * Returns `{width, height, places: [{x, y}], paths: [[{x, y}]]}`: the middles of the vertices, and
   * for each edge the points between its ends. */
  function layered(vertices, edges) {
    const forward = withoutCycles(vertices.length, edges);
    const ranks = ranked(vertices, forward);
    const all = vertices.map((vertex, id) => ({ ...vertex, id, rank: ranks[id], up: [], down: [] }));
    const chains = edges.map(() => []);
    edges.forEach((edge, number) => {
      let [top, bottom] = [all[edge.from], all[edge.to]];
      let [out, into] = [edge.out, edge.in];
      if (top.rank > bottom.rank) [top, bottom, out, into] = [bottom, top, into, out];
      let last = top;
      for (let rank = top.rank + 1; rank < bottom.rank; rank += 1) {
        const bend = { w: 8, h: 0, id: all.length, rank, up: [], down: [], bend: true };
        all.push(bend);
        chains[number].push(bend);
        join(last, bend, last === top ? out : 0, 0);
        last = bend;
      }
      if (last !== bottom) join(last, bottom, last === top ? out : 0, into);
    });
    const layers = ordered(all);
    spread(layers);
    return measured(vertices, edges, all, layers, chains);
  }

  function join(top, bottom, out, into) {
    top.down.push({ to: bottom, here: out, there: into });
    bottom.up.push({ to: top, here: into, there: out });
  }

  /** The edges that do not close a cycle. */
  function withoutCycles(count, edges) {
    const next = Array.from({ length: count }, () => []);
    const reaches = (from, to) => {
      const seen = new Set();
      const waiting = [from];
      while (waiting.length) {
        const at = waiting.pop();
        if (at === to) return true;
        if (seen.has(at)) continue;
        seen.add(at);
        waiting.push(...next[at]);
      }
      return false;
    };
    return edges.filter((edge) => {
      if (reaches(edge.to, edge.from)) return false;
      next[edge.from].push(edge.to);
      return true;
    });
  }

  /** The layer of each vertex: below all that it reads, and what nothing is above close to its
   * readers. */
  function ranked(vertices, edges) {
    const ranks = vertices.map(() => 0);
    for (let changed = true; changed; ) {
      changed = false;
      for (const { from, to } of edges) {
        if (ranks[to] <= ranks[from]) {
          ranks[to] = ranks[from] + 1;
          changed = true;
        }
      }
    }
    const hasInput = new Set(edges.map((edge) => edge.to));
    vertices.forEach((vertex, id) => {
      const below = edges.filter((edge) => edge.from === id).map((edge) => ranks[edge.to]);
      if (!hasInput.has(id) && !vertex.first && below.length) ranks[id] = Math.min(...below) - 1;
    });
    const deepest = Math.max(0, ...ranks.filter((_, id) => !vertices[id].last));
    vertices.forEach((vertex, id) => {
      if (vertex.last) ranks[id] = deepest + 1;
    });
    const used = [...new Set(ranks)].sort((a, b) => a - b);
    return ranks.map((rank) => used.indexOf(rank));
  }

  /** The layers, each from left to right, with few crossings. */
  function ordered(all) {
    const layers = [];
    for (const vertex of all) (layers[vertex.rank] ??= []).push(vertex);
    const number = () => layers.forEach((layer) => layer.forEach((v, at) => (v.at = at)));
    number();
    let best = null;
    for (let sweep = 0; sweep <= SWEEPS; sweep += 1) {
      const crossed = crossings(layers);
      if (best === null || crossed < best.crossed) {
        best = { crossed, layers: layers.map((layer) => [...layer]) };
      }
      if (crossed === 0) break;
      const down = sweep % 2 === 0;
      const sequence = down ? layers.slice(1) : layers.slice(0, -1).reverse();
      for (const layer of sequence) {
        for (const vertex of layer) {
          const near = down ? vertex.up : vertex.down;
          const sum = near.reduce((total, link) => total + link.to.at + link.there / 1e4, 0);
          vertex.wish = near.length ? sum / near.length : vertex.at;
        }
        layer.sort((a, b) => a.wish - b.wish || a.at - b.at);
        layer.forEach((vertex, at) => (vertex.at = at));
      }
    }
    best.layers.forEach((layer) => layer.forEach((vertex, at) => (vertex.at = at)));
    return best.layers;
  }

  function crossings(layers) {
    let total = 0;
    for (const layer of layers) {
      const links = layer.flatMap((vertex) =>
        vertex.down.map((link) => [
          vertex.at + link.here / 1e4,
          link.to.at + link.there / 1e4,
        ]),
      );
      for (let a = 0; a < links.length; a += 1) {
        for (let b = a + 1; b < links.length; b += 1) {
          if ((links[a][0] - links[b][0]) * (links[a][1] - links[b][1]) < 0) total += 1;
        }
      }
    }
    return total;
  }

  /** Give each vertex an `x`: near the middle of its neighbours, in order, without overlap. */
  function spread(layers) {
    for (const layer of layers) {
      let x = 0;
      for (const vertex of layer) {
        vertex.x = x + vertex.w / 2;
        x += vertex.w + GAP_X;
      }
    }
    for (let sweep = 0; sweep < 2 * SWEEPS; sweep += 1) {
      const down = sweep % 2 === 0;
      for (const layer of down ? layers : [...layers].reverse()) {
        for (const vertex of layer) {
          const near = down ? vertex.up : vertex.down;
          const links = near.length ? near : [...vertex.up, ...vertex.down];
          const sum = links.reduce((t, link) => t + link.to.x + link.there - link.here, 0);
          vertex.wish = links.length ? sum / links.length : vertex.x;
        }
        separate(layer);
      }
    }
  }

  /** The places closest to the wishes (in least squares) that keep order and distance: neighbours
   * that would overlap become one block, which goes to the mean of its wishes. */
  function separate(layer) {
    const blocks = [];
    let offset = 0;
    layer.forEach((vertex, at) => {
      if (at) offset += (layer[at - 1].w + vertex.w) / 2 + GAP_X;
      let block = { sum: vertex.wish - offset, count: 1, members: [[vertex, offset]] };
      while (blocks.length) {
        const left = blocks[blocks.length - 1];
        if (left.sum / left.count <= block.sum / block.count) break;
        blocks.pop();
        block = {
          sum: left.sum + block.sum,
          count: left.count + block.count,
          members: [...left.members, ...block.members],
        };
      }
      blocks.push(block);
    });
    for (const block of blocks) {
      for (const [vertex, moved] of block.members) vertex.x = block.sum / block.count + moved;
    }
  }

  function measured(vertices, edges, all, layers, chains) {
    const left = Math.min(...all.map((vertex) => vertex.x - vertex.w / 2));
    const right = Math.max(...all.map((vertex) => vertex.x + vertex.w / 2));
    let y = 0;
    const flat = layers.map((layer) => layer.every((vertex) => vertex.h === 0));
    const bands = layers.map((layer, rank) => {
      const height = Math.max(...layer.map((vertex) => vertex.h));
      const band = { top: y, bottom: y + height };
      const last = rank === layers.length - 1;
      y += height + (last ? 0 : flat[rank] || flat[rank + 1] ? GAP_Y / 2 : GAP_Y);
      return band;
    });
    const places = vertices.map((_, id) => {
      const { top, bottom } = bands[all[id].rank];
      return { x: all[id].x - left, y: (top + bottom) / 2 };
    });
    const paths = edges.map((edge, number) => {
      const [a, b] = [all[edge.from], all[edge.to]];
      const points = [{ x: a.x - left + edge.out, y: bands[a.rank].bottom }];
      for (const bend of chains[number]) {
        const { top, bottom } = bands[bend.rank];
        points.push({ x: bend.x - left, y: top });
        if (bottom > top) points.push({ x: bend.x - left, y: bottom });
      }
      points.push({ x: b.x - left + edge.in, y: bands[b.rank].top });
      return points;
    });
    return { width: right - left, height: y, places, paths };
  }

  /** One kernel by itself.
   *
   * `members` are nodes with sizes; `reads` and `gives` are the nodes outside that it reads, in the
   * order in which they are to stand at its top, and the members that are read outside. */
  function inside(graph, sizes, members, reads, gives) {
    const spot = new Map(members.map((node, at) => [node, at]));
    const vertices = members.map((node) => ({ ...sizes[node] }));
    const edges = [];
    const port = (place) => vertices.push({ w: 6, h: 0, [place]: true }) - 1;
    const ports = members.length > 1;
    const ins = new Map(ports ? reads.map((node) => [node, port("first")]) : []);
    const outs = new Map(ports ? gives.map((node) => [node, port("last")]) : []);
    const known = [];
    const add = (key, from, to) => {
      known.push(key);
      edges.push({ from, to, out: 0, in: 0 });
    };
    for (const [from, to] of graph.edges) {
      if (!spot.has(to)) continue;
      if (spot.has(from)) add(`${from}>${to}`, spot.get(from), spot.get(to));
      else if (ports) add(`${from}>${to}`, ins.get(from), spot.get(to));
    }
    for (const [node, id] of outs) add(`${node}>`, spot.get(node), id);
    const done = layered(vertices, edges);
    const paths = new Map(known.map((key, at) => [key, done.paths[at]]));
    return { ...done, spot, ins, outs, paths, members };
  }

  /** Where everything goes.
   *
   * `sizes` are `{w, h}` of the nodes of `graph`.  Returns `{width, height, nodes: [{x, y, w, h}],
   * boxes: [{cluster, x, y, w, h}], edges: [{from, to, points}]}`. */
  function place(graph, sizes) {
    const groups = grouped(graph);
    const group = new Map();
    groups.forEach((each, at) => each.members.forEach((node) => group.set(node, at)));
    let done = null;
    for (let round = 0; round < 2; round += 1) {
      const order = done;
      for (const each of groups) {
        const reads = [...each.reads];
        if (order) reads.sort((a, b) => order.nodes[a].x - order.nodes[b].x);
        each.inner = inside(graph, sizes, each.members, reads, [...each.gives]);
      }
      done = around(graph, sizes, groups, group);
    }
    return done;
  }

  /** The kernels, each with its members, what it reads and what it gives; what is in none is by
   * itself. */
  function grouped(graph) {
    const known = new Map();
    graph.nodes.forEach((node, at) => {
      const key = node.cluster < 0 ? `node ${at}` : node.cluster;
      if (!known.has(key)) {
        known.set(key, { cluster: node.cluster, members: [], reads: new Set(), gives: new Set() });
      }
      known.get(key).members.push(at);
    });
    const groups = [...known.values()];
    const home = new Map(groups.flatMap((each) => each.members.map((node) => [node, each])));
    for (const [from, to] of graph.edges) {
      if (home.get(from) !== home.get(to)) {
        home.get(to).reads.add(from);
        home.get(from).gives.add(from);
      }
    }
    return groups;
  }

  function around(graph, sizes, groups, group) {
    const frame = (each) => (each.cluster < 0 ? { pad: 0, head: 0 } : { pad: PAD, head: HEAD });
    const vertices = groups.map((each) => {
      const { pad, head } = frame(each);
      return { w: each.inner.width + 2 * pad, h: each.inner.height + 2 * pad + head };
    });
    /** How far from the middle of its group a node's port is. */
    const aside = (each, ports, node, member) => {
      const id = ports.has(node) ? ports.get(node) : each.inner.spot.get(member);
      return each.inner.places[id].x - each.inner.width / 2;
    };
    const outer = new Map();
    for (const [from, to] of graph.edges) {
      const [a, b] = [group.get(from), group.get(to)];
      const key = `${from}>${b}`;
      if (a === b || outer.has(key)) continue;
      outer.set(key, {
        from: a,
        to: b,
        out: aside(groups[a], groups[a].inner.outs, from, from),
        in: aside(groups[b], groups[b].inner.ins, from, to),
      });
    }
    const keys = [...outer.keys()];
    const whole = layered(vertices, [...outer.values()]);
    const corner = groups.map((each, at) => {
      const { pad, head } = frame(each);
      const { x, y } = whole.places[at];
      return { x: x - vertices[at].w / 2 + pad, y: y - vertices[at].h / 2 + pad + head };
    });
    const nodes = graph.nodes.map((_, node) => {
      const at = group.get(node);
      const { inner } = groups[at];
      const { x, y } = inner.places[inner.spot.get(node)];
      return { x: x + corner[at].x, y: y + corner[at].y, ...sizes[node] };
    });
    const boxes = groups.flatMap((each, at) => {
      if (each.cluster < 0) return [];
      const { x, y } = whole.places[at];
      const { w, h } = vertices[at];
      return [{ cluster: each.cluster, x: x - w / 2, y: y - h / 2, w, h }];
    });
    const edges = graph.edges.map(([from, to]) => {
      const [a, b] = [group.get(from), group.get(to)];
      const within = (at, key) =>
        (groups[at].inner.paths.get(key) ?? []).map((point) => ({
          x: point.x + corner[at].x,
          y: point.y + corner[at].y,
        }));
      const points =
        a === b
          ? within(a, `${from}>${to}`)
          : [
              ...within(a, `${from}>`),
              ...whole.paths[keys.indexOf(`${from}>${b}`)],
              ...within(b, `${from}>${to}`),
            ];
      const [start, end] = [nodes[from], nodes[to]];
      const first = { x: start.x, y: start.y + start.h / 2 };
      const last = { x: end.x, y: end.y - end.h / 2 };
      return { from, to, points: [first, ...points, last] };
    });
    return { width: whole.width, height: whole.height, nodes, boxes, edges };
  }

  /** A smooth SVG path through points, upright at each. */
  function curve(points) {
    let text = `M${round(points[0].x)},${round(points[0].y)}`;
    for (let at = 1; at < points.length; at += 1) {
      const [p, q] = [points[at - 1], points[at]];
      if (Math.abs(p.y - q.y) < 0.5 && Math.abs(p.x - q.x) < 0.5) continue;
      const middle = (p.y + q.y) / 2;
      text +=
        Math.abs(p.x - q.x) < 0.5
          ? `L${round(q.x)},${round(q.y)}`
          : `C${round(p.x)},${round(middle)} ${round(q.x)},${round(middle)} ${round(q.x)},${round(q.y)}`;
    }
    return text;
  }

  const round = (value) => Math.round(value * 10) / 10;

  return { place, curve };
})();
