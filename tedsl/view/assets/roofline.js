"use strict";

/** The roofline as SVG: operations for each byte against operations a second, both by powers of ten,
 * under what memory and the units for arithmetic can do. */
const Roof = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [640, 400, 70, 44, 18, 24];
  const UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

  function draw(tag, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  /** 1.5e9 as `1.5 G`. */
  function short(value) {
    const [size, letter] = UNITS.find(([least]) => value >= least) ?? [1, ""];
    return `${Number((value / size).toPrecision(3))} ${letter}`.trim();
  }

  function time(seconds) {
    const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]].find(([least]) => seconds >= least) ?? [1e-9, "ns"];
    return `${Number((seconds / scale).toPrecision(3))} ${unit}`;
  }

  /** Where a point is: `{x: flops for each byte, y: flops a second}`; none without operations. */
  function placed({ points }) {
    return points
      .filter((point) => point.flops > 0 && point.nbytes > 0 && point.seconds > 0)
      .map((point) => ({ ...point, x: point.flops / point.nbytes, y: point.flops / point.seconds }));
  }

  /** The picture, and what is asked when a kernel is chosen. */
  function picture(roof, choose) {
    const points = placed(roof);
    const peak = Math.max(...roof.peaks.map(([, rate]) => rate));
    const ridges = roof.peaks.map(([, rate]) => rate / roof.bandwidth);
    const decade = (value, up) => 10 ** Math[up ? "ceil" : "floor"](Math.log10(value));
    const lowX = decade(Math.min(...points.map((p) => p.x), ...ridges) / 2, false);
    const highX = decade(2 * Math.max(...points.map((p) => p.x), ...ridges), true);
    const lowY = decade(Math.min(...points.map((p) => p.y), lowX * roof.bandwidth), false);
    const highY = decade(peak, true);
    const along = (value, low, high) => Math.log10(value / low) / Math.log10(high / low);
    const x = (value) => LEFT + along(value, lowX, highX) * (WIDTH - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - along(value, lowY, highY) * (HEIGHT - BOTTOM - TOP);
    const line = (name, ...ends) =>
      draw("path", { class: name, d: ends.map(([a, b], at) => `${at ? "L" : "M"}${x(a)},${y(b)}`).join("") });
    const words = (text, at, name = "") => draw("text", { class: `small ${name}`, ...at }, text);
    const svg = draw("svg", { class: "roof", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "roofline" });
    for (let tick = lowX; tick <= highX * 1.01; tick *= 10) {
      svg.append(line("grid", [tick, lowY], [tick, highY]), words(short(tick), { x: x(tick), y: HEIGHT - 26 }, "middle"));
    }
    for (let tick = lowY; tick <= highY * 1.01; tick *= 10) {
      svg.append(line("grid", [lowX, tick], [highX, tick]), words(`${short(tick)}flop/s`, { x: 4, y: y(tick) + 3 }));
    }
    svg.append(words("operations for each byte from memory", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8 }, "middle"));
    const last = Math.max(...ridges);
    svg.append(line("limit", [lowX, lowX * roof.bandwidth], [last, last * roof.bandwidth]));
    roof.peaks.forEach(([name, rate], at) => {
      svg.append(line("limit", [ridges[at], rate], [highX, rate]));
      svg.append(words(`${name}: ${short(rate)}flop/s`, { x: x(highX) - 4, y: y(rate) - 5 }, "end"));
    });
    const text = words(`memory: ${short(roof.bandwidth)}B/s`, { x: x(lowX) + 8, y: y(lowX * roof.bandwidth) + 14 });
    svg.append(text);
    for (const point of points) {
      const mark = draw("circle", { class: point.name === "unfused" ? "point before" : "point", cx: x(point.x), cy: y(point.y), r: 6 });
      const group = draw("g", { tabindex: 0, role: "button", "aria-label": point.name }, mark);
      group.append(draw("title", {}, told(roof, point)));
      const before = point.name === "unfused";
      const place = { x: x(point.x) + (before ? -10 : 10), y: y(point.y) + 4 };
      group.append(words(point.name, place, before ? "end" : ""));
      if (point.stage >= 0) {
        group.dataset.s = point.stage;
        group.addEventListener("click", () => choose(point.stage));
      }
      svg.append(group);
    }
    return svg;
  }

  /** One sentence of a point. */
  function told(roof, point) {
    const peak = Math.max(...roof.peaks.map(([, rate]) => rate));
    const least = Math.max(point.flops / peak, point.nbytes / roof.bandwidth);
    const share = Math.min(100, Math.round((100 * least) / point.seconds));
    const wait = point.nbytes / roof.bandwidth >= point.flops / peak ? "memory" : "arithmetic";
    return `${point.name}: ${short(point.flops)}flop, ${short(point.nbytes)}B, ${time(point.seconds)} predicted, `
      + `${share} % of the roof, at best as long as ${wait} takes`;
  }

  return { picture, told, placed, short };
})();
