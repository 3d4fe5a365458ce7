"use strict";

/** Texts as elements: numbered lines, coloured, with stages and changes marked. */
const Listing = (() => {
  const CHUNK = 120; // lines that the browser may leave out together while they are not in sight
  const AROUND = 3; // lines shown around a change

  /** An element with a class, attributes and children (text, or elements). */
  function make(tag, name, attributes = {}, ...children) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  /** One line of the table. */
  function row(id, language, number, kind) {
    const { text, marks } = Store.lines[id];
    const line = make("div", `line ${kind}`);
    const stages = Store.stagesOf(id);
    if (stages.length) line.dataset.s = stages.join(" ");
    const whole = marks.filter((mark) => mark.length === 0).map((mark) => mark.stage);
    if (whole.length) line.dataset.w = whole.join(" ");
    const sign = { new: "+", gone: "\u2212" }[kind] ?? "";
    line.append(make("span", "number", { "data-n": number === null ? "" : number }));
    line.append(make("span", "sign", { "data-n": sign }));
    line.append(words(text, marks, language));
    return line;
  }

  /** The text, cut where a colour or a stage begins or ends. */
  function words(text, marks, language) {
    const content = make("span", "content");
    const colours = Colour.spans(text, language);
    const named = marks.filter((mark) => mark.length > 0);
    const cuts = new Set([0, text.length]);
    for (const { start, end } of colours) cuts.add(start).add(end);
    for (const { start, length } of named) cuts.add(start).add(start + length);
    const places = [...cuts].sort((a, b) => a - b);
    for (let at = 0; at + 1 < places.length; at += 1) {
      const [start, end] = [places[at], places[at + 1]];
      const piece = text.slice(start, end);
      const colour = colours.find((each) => each.start <= start && end <= each.end);
      const mark = named.find((each) => each.start <= start && end <= each.start + each.length);
      if (!colour && !mark) {
        content.append(piece);
        continue;
      }
      const span = make("span", [colour && `c-${colour.kind}`, mark && "stage"].filter(Boolean).join(" "));
      if (mark) span.dataset.s = mark.stage;
      span.textContent = piece;
      content.append(span);
    }
    return content;
  }

  /** Rows as chunks. */
  function chunked(rows) {
    const listing = make("div", "listing");
    for (let at = 0; at < rows.length; at += CHUNK) {
      const part = rows.slice(at, at + CHUNK);
      const chunk = make("div", "chunk", {}, ...part);
      chunk.style.setProperty("--lines", part.length);
      listing.append(chunk);
    }
    return listing;
  }

  /** A text by itself. */
  function plain(ids, language) {
    return chunked(ids.map((id, at) => row(id, language, at + 1, "same")));
  }

  /** A text with what changed since the one before; with `only`, little else. */
  function changed(text, language, only) {
    const rows = [];
    let number = 0;
    text.parts.forEach((part, at) => {
      const last = at === text.parts.length - 1;
      const [head, tail] = [at === 0 ? 0 : AROUND, last ? 0 : AROUND];
      const hidden = only && part.kind === "same" ? part.ids.length - head - tail : 0;
      part.ids.forEach((id, place) => {
        if (part.kind !== "gone") number += 1;
        if (hidden > 1 && place >= head && place < head + hidden) {
          if (place === head) rows.push(make("div", "folded", {}, `${hidden} lines`));
          return;
        }
        rows.push(row(id, language, part.kind === "gone" ? null : number, part.kind));
      });
    });
    return chunked(rows);
  }

  /** How many lines came and went. */
  function size(text) {
    const total = (kind) =>
      text.parts.filter((part) => part.kind === kind).reduce((n, part) => n + part.ids.length, 0);
    return { come: total("new"), gone: total("gone") };
  }

  return { make, plain, changed, size };
})();
