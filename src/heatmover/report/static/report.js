/* Draws the figures of the report from the data in the page. Names reach the page only as text nodes. */
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const samples = data.shared, maps = data.sections.map.maps, heat = data.sections.heatmap;
  const mixture = data.sections.composition || null;
  const cells = data.sections.cellmap || null;
  const count = samples.names.length;
  // Colors of Okabe and Ito without gray, which marks missing values; further rounds are lighter or darker.
  const BASE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  const SHAPES = ["circle", "triangle-up", "square", "diamond", "triangle-down", "cross", "x"];
  const ROUNDS = [0, 0.45, -0.4, 0.7, -0.65];
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  const NEAR = heat.colors;
  const MOST_LABELS = 60, LONGEST = 22, LETTERS = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
  // With more samples, only few names would fit.
  const MOST_NAMES = 1000, NAME_SIZE = 12;
  const state = { coloring: samples.first, map: 0, lines: count <= 60, pairs: true, names: count <= MOST_NAMES, find: "", order: "groups", cellColor: 0 };
  const tip = document.getElementById("tip");
  const figure = document.getElementById("sample-map"), matrix = document.getElementById("heatmap-figure");
  const bars = document.getElementById("composition-figure"), cellPlot = document.getElementById("cellmap-figure");

  function channels(color) {
    return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  }
  function mix(color, other, share) {
    const a = channels(color), b = channels(other);
    const mixed = a.map((value, i) => Math.round(value + (b[i] - value) * share));
    return "#" + mixed.map((value) => value.toString(16).padStart(2, "0")).join("");
  }
  function groupColor(code) {
    const round = ROUNDS[Math.floor(code / BASE.length) % ROUNDS.length];
    return mix(BASE[code % BASE.length], round < 0 ? "#000000" : "#ffffff", Math.abs(round));
  }
  function rampColor(stops, share) {
    const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return mix(stops[low], stops[low + 1], place - low);
  }
  function variable(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }
  function theme() {
    return {
      ink: variable("--ink"), quiet: variable("--quiet"), line: variable("--line"), faint: variable("--faint"),
      halo: variable("--halo"), missing: variable("--missing"),
    };
  }
  function digits(value, most) {
    return value === 0 ? "0" : String(Number(value.toPrecision(most || 4)));
  }
  function short(text, longest) {
    // Control characters for line breaks or the direction of writing would disturb the text next to the name.
    const line = Array.from(text.replace(/\s+/g, " ").replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd"));
    if (!text.trim()) return "(blank)";
    return line.length <= longest ? line.join("") : line.slice(0, longest - 1).join("") + "\u2026";
  }
  // Plotly interprets some tags in texts as markup, and dollar signs as mathematics.
  function literal(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  }

  /* ---- colors ---- */
  function extent(coloring) {
    const known = coloring.values.filter((value) => value !== null);
    return [Math.min.apply(null, known), Math.max.apply(null, known)];
  }
  function colors(coloring, missing) {
    if (coloring.kind === "groups") return coloring.codes.map((code) => (code < 0 ? missing : groupColor(code)));
    const [low, high] = extent(coloring);
    return coloring.values.map((value) => (value === null ? missing : rampColor(VIRIDIS, (value - low) / (high - low || 1))));
  }
  function shapes(coloring) {
    if (coloring.kind === "groups") return coloring.codes.map((code) => (code < 0 ? "circle-open" : SHAPES[code % SHAPES.length]));
    return coloring.values.map((value) => (value === null ? "circle-open" : "circle"));
  }
  function valueOf(coloring, i) {
    if (coloring.kind === "groups") return coloring.codes[i] < 0 ? "missing" : coloring.groups[coloring.codes[i]];
    return coloring.values[i] === null ? "missing" : digits(coloring.values[i], 5);
  }

  /* ---- legends and tips: text nodes only ---- */
  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const PATHS = {
    "circle": "M7 2a5 5 0 1 0 .01 0z", "circle-open": "M7 2a5 5 0 1 0 .01 0z", "triangle-up": "M7 1.5l5.5 10h-11z",
    "square": "M2.5 2.5h9v9h-9z", "diamond": "M7 1l6 6-6 6-6-6z", "triangle-down": "M7 12.5l5.5-10h-11z",
    "cross": "M5 1.5h4V5h3.5v4H9v3.5H5V9H1.5V5H5z", "x": "M3.5 1.2L7 4.7l3.5-3.5 2.3 2.3L9.3 7l3.5 3.5-2.3 2.3L7 9.3l-3.5 3.5-2.3-2.3L4.7 7 1.2 3.5z",
  };
  function swatch(color, shape) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg"), path = document.createElementNS(space, "path");
    svg.setAttribute("width", "14");
    svg.setAttribute("height", "14");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", PATHS[shape]);
    path.setAttribute("fill", shape === "circle-open" ? "none" : color);
    if (shape === "circle-open") { path.setAttribute("stroke", color); path.setAttribute("stroke-width", "2"); }
    svg.appendChild(path);
    return svg;
  }
  function gradient(stops) {
    const made = element("span", "gradient");
    made.style.background = "linear-gradient(to right, " + stops.join(", ") + ")";
    return made;
  }
  function item(color, shape, text) {
    const made = element("span", "item");
    made.append(swatch(color, shape), element("bdi", "", text));
    return made;
  }
  function drawLegends(coloring, missing) {
    document.querySelectorAll(".legend:not(.types)").forEach((box) => {
      box.replaceChildren(element("bdi", "title", short(coloring.name, 40)));
      let absent;
      if (coloring.kind === "groups") {
        coloring.groups.forEach((group, code) =>
          box.append(item(groupColor(code), SHAPES[code % SHAPES.length], short(group, 40) + " (" + coloring.counts[code] + ")")));
        absent = coloring.codes.filter((code) => code < 0).length;
      } else {
        const [low, high] = extent(coloring);
        const made = element("span", "item");
        made.append(digits(low), gradient(VIRIDIS), digits(high));
        box.append(made);
        absent = coloring.values.filter((value) => value === null).length;
      }
      if (absent) box.append(item(missing, "circle-open", "missing (" + absent + ")"));
    });
  }
  function showTip(event, head, lines) {
    tip.replaceChildren();
    head.forEach((text) => tip.append(element("strong", "", text)));
    lines.forEach((text) => tip.append(element("div", "", text)));
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), margin = 14;
    const x = event.clientX + margin + box.width < window.innerWidth ? event.clientX + margin : event.clientX - margin - box.width;
    const y = event.clientY + margin + box.height < window.innerHeight ? event.clientY + margin : event.clientY - margin - box.height;
    // Position the tip in the page, not in the window, so that it stays at its sample when the reader scrolls.
    tip.style.left = window.scrollX + Math.max(8, x) + "px";
    tip.style.top = window.scrollY + Math.max(8, y) + "px";
  }
  function hideTip() { tip.hidden = true; }
  function cellsOf(i) { return samples.cells[i].toLocaleString("en") + (samples.cells[i] === 1 ? " cell" : " cells"); }
  function lineOf(coloring, i) { return short(coloring.name, 40) + ": " + short(valueOf(coloring, i), 60); }

  /* ---- the map ---- */
  function layout(look) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      font: { family: LETTERS, size: 13, color: look.ink },
      // On a touch screen, a finger on a figure scrolls the page.
      dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
  }
  const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showTips: false, doubleClick: "reset" };
  function nearestLines(map, look) {
    const x = [], y = [];
    if (state.lines) samples.nearest.forEach((other, i) => { x.push(map.x[i], map.x[other], null); y.push(map.y[i], map.y[other], null); });
    return { type: "scatter", mode: "lines", x: x, y: y, hoverinfo: "skip", line: { color: look.faint, width: 1.2 } };
  }
  function pairLines(map, look) {
    const x = [], y = [];
    if (state.pairs) (data.sections.map.pairs || []).forEach(([i, j]) => { x.push(map.x[i], map.x[j], null); y.push(map.y[i], map.y[j], null); });
    return { type: "scatter", mode: "lines", x: x, y: y, hoverinfo: "skip", zorder: -1, line: { color: look.quiet, width: 1.4, dash: "dot" } };
  }
  function matching() {
    const wanted = state.find.trim().toLowerCase();
    return wanted ? samples.names.map((name) => name.toLowerCase().includes(wanted)) : null;
  }
  function marksOf(map, coloring, found, look) {
    const symbols = shapes(coloring), size = markSize();
    return {
      type: "scatter", mode: "markers", x: map.x, y: map.y, hoverinfo: "none",
      marker: {
        color: colors(coloring, look.missing), symbol: symbols,
        size: symbols.map((symbol, i) => size * (symbol.startsWith("triangle") ? 1.2 : 1) * (found && found[i] ? 1.5 : 1)),
        opacity: found ? found.map((hit) => (hit ? 1 : 0.12)) : count <= 400 ? 0.95 : 0.8,
        line: { color: look.halo, width: count <= 400 ? 1 : 0.5 },
      },
    };
  }
  function markSize() { return count <= 100 ? 11 : count <= 400 ? 8 : count <= 2000 ? 6.5 : 4.5; }
  function rangeOf(values) {
    // Leave room at the edges for marks and their names.
    const low = Math.min.apply(null, values), high = Math.max.apply(null, values);
    const room = (high - low || 1) * (count <= 100 ? 0.12 : 0.06);
    return [low - room, high + room];
  }
  function mapFrame(map, look) {
    const axis = (i, values) => ({
      title: { text: map.axes[i], font: { size: 13, color: look.quiet } }, gridcolor: look.line, zeroline: false, range: rangeOf(values),
      linecolor: look.faint, tickfont: { size: 12, color: look.quiet }, nticks: 6,
    });
    // Use fixed margins, so that positions do not depend on what was drawn before.
    const frame = Object.assign(layout(look), { margin: { l: 68, r: 12, t: 10, b: 46 }, xaxis: axis(0, map.x), yaxis: axis(1, map.y) });
    // Use the same unit in both directions, so that distances are not distorted.
    if (state.map === 0) frame.yaxis.scaleanchor = "x";
    // Keep the zoom when the colors change, but not when the map changes.
    frame.uirevision = "map" + state.map;
    return frame;
  }
  function drawMap() {
    const look = theme(), map = maps[state.map], found = matching();
    const marks = marksOf(map, samples.colorings[state.coloring], found, look);
    const names = { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", textfont: { size: NAME_SIZE, color: look.quiet } };
    Plotly.react(figure, [nearestLines(map, look), marks, names, pairLines(map, look)], mapFrame(map, look), CONFIG);
    drawNames();
    document.getElementById("found").textContent =
      found ? found.filter(Boolean).length.toLocaleString("en") + " of " + count.toLocaleString("en") + " samples found" : "";
  }

  /* ---- names on the map: as many as fit, placed as in heatmover.study.drawing.map ---- */
  const SIDES = [[0, -1], [0, 1], [1, 0], [-1, 0], [1, -1], [-1, -1], [1, 1], [-1, 1]];
  const pen = document.createElement("canvas").getContext("2d");
  function covers(a, b) { return a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]; }
  function away(box, point) {
    const x = Math.max(box[0] - point[0], point[0] - box[2], 0), y = Math.max(box[1] - point[1], point[1] - box[3], 0);
    return x * x + y * y;
  }
  function placeNames(centers, sizes, wanted, radius, gap, width, height) {
    const taken = centers.map(([x, y]) => [x - radius, y - radius, x + radius, y + radius]);
    return centers.map((center, own) => {
      if (!wanted[own]) return null;
      const [wide, high] = sizes[own];
      for (const [right, down] of SIDES) {
        const near = gap * (right && down ? 0.7 : 1);
        const x = center[0] + right * (wide / 2 + near), y = center[1] + down * (high / 2 + near);
        const box = [x - wide / 2, y - high / 2, x + wide / 2, y + high / 2];
        if (box[0] < 0 || box[1] < 0 || box[2] > width || box[3] > height) continue;
        if (taken.some((other) => covers(box, other))) continue;
        const far = away(box, center);
        if (centers.some((other, i) => (i < own ? away(box, other) <= far : away(box, other) < far))) continue;
        taken.push(box);
        return [x, y];
      }
      return null;
    });
  }
  function drawNames() {
    const { xaxis, yaxis } = figure._fullLayout, map = maps[state.map], found = matching();
    const x = [], y = [], text = [];
    if (state.names && count <= MOST_NAMES) {
      pen.font = NAME_SIZE + "px " + LETTERS;
      const shown = samples.names.map((name) => short(name, LONGEST));
      const centers = map.x.map((value, i) => [xaxis.c2p(value), yaxis.c2p(map.y[i])]);
      const sizes = shown.map((name) => [pen.measureText(name).width + 2, NAME_SIZE + 2]);
      const wanted = centers.map(([a, b], i) => (!found || found[i]) && a >= 0 && b >= 0 && a <= xaxis._length && b <= yaxis._length);
      placeNames(centers, sizes, wanted, 0.6 * markSize(), 0.6 * markSize() + 3, xaxis._length, yaxis._length).forEach((place, i) => {
        if (!place) return;
        x.push(xaxis.p2c(place[0]));
        y.push(yaxis.p2c(place[1]));
        text.push(literal(shown[i]));
      });
    }
    Plotly.restyle(figure, { x: [x], y: [y], text: [text] }, [2]);
  }
  function hoverMap(shown) {
    const i = shown.points[0].pointIndex, coloring = samples.colorings[state.coloring];
    const lines = [cellsOf(i)];
    if (state.coloring < samples.colorings.length - 1) lines.push(lineOf(coloring, i));
    lines.push("nearest: " + short(samples.names[samples.nearest[i]], 60) + " (distance " + digits(samples.nearest_distance[i]) + ")");
    showTip(shown.event, [short(samples.names[i], 120)], lines);
  }

  /* ---- the heatmap ---- */
  function unpack(packed) {
    const text = atob(packed.steps), n = packed.size;
    const rows = Array.from({ length: n }, () => new Float32Array(n));
    for (let i = 0, at = 0; i < n; i++)
      for (let j = i + 1; j < n; j++, at += 2)
        rows[i][j] = rows[j][i] = ((text.charCodeAt(at) | (text.charCodeAt(at + 1) << 8)) / 65535) * packed.largest;
    return rows;
  }
  const distances = unpack(heat), bounds = heat.alike ? [unpack(heat.lower), unpack(heat.upper)] : null;
  const places = Array.from({ length: heat.size }, (_, i) => i);
  function scaleOf(list) {
    // Every value gets its own color, without a gradient between values.
    const scale = [];
    list.forEach((color, i) => scale.push([i / list.length, color], [(i + 1) / list.length, color]));
    return scale;
  }
  function strips(coloring, look) {
    const all = colors(coloring, look.missing), used = Array.from(new Set(heat.order.map((i) => all[i])));
    const codes = heat.order.map((i) => used.indexOf(all[i]));
    const strip = { type: "heatmap", hoverinfo: "none", showscale: false, zmin: -0.5, zmax: used.length - 0.5, colorscale: scaleOf(used) };
    return [
      Object.assign({ x: places, y: [0], z: [codes], yaxis: "y2" }, strip),
      Object.assign({ x: [0], y: places, z: codes.map((code) => [code]), xaxis: "x2" }, strip),
    ];
  }
  function heatmapFigure(look) {
    const coloring = samples.colorings[state.coloring], n = heat.size;
    const ramp = NEAR.map((color, i) => [i / (NEAR.length - 1), color]);
    const main = { type: "heatmap", x: places, y: places, z: distances, hoverinfo: "none", showscale: false, colorscale: ramp, zmin: heat.range[0], zmax: heat.range[1] };
    // Show names only if there is room to read them.
    const labeled = n <= MOST_LABELS && matrix.clientWidth / n >= 13 && matrix.clientWidth >= 520;
    const axis = { range: [-0.5, n - 0.5], showgrid: false, zeroline: false, ticks: "", showticklabels: false, constrain: "domain" };
    const thin = { domain: [0, 0.03], showgrid: false, zeroline: false, ticks: "", showticklabels: false, fixedrange: true };
    const texts = labeled ? heat.order.map((i) => short(samples.names[i], LONGEST)) : [];
    const names = labeled
      ? { showticklabels: true, tickmode: "array", tickvals: places, ticktext: texts.map(literal), tickfont: { size: 12, color: look.quiet },
          ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)" }
      : {};
    const room = 20 + 8 * Math.max(0, ...texts.map((text) => text.length));
    const frame = Object.assign(layout(look), {
      margin: { l: 8, r: labeled ? room : 8, t: 8, b: 8 },
      xaxis: Object.assign({ domain: [0.04, 1] }, axis), yaxis: Object.assign({ domain: [0, 0.96], side: "right" }, axis, names, { range: [n - 0.5, -0.5] }),
      xaxis2: Object.assign({}, thin), yaxis2: Object.assign({}, thin, { domain: [0.97, 1] }), uirevision: "heatmap",
    });
    if (hatched)
      frame.images = [{ source: hatched, xref: "x", yref: "y", x: -0.5, y: -0.5, sizex: n, sizey: n, sizing: "stretch", layer: "above" }];
    return { data: [main].concat(strips(coloring, look)), layout: frame };
  }
  function drawHeatmap() {
    const made = heatmapFigure(theme());
    Plotly.react(matrix, made.data, made.layout, CONFIG);
  }
  function hoverHeatmap(shown) {
    const point = shown.points[0], coloring = samples.colorings[state.coloring];
    if (point.curveNumber > 0) {
      const i = heat.order[point.curveNumber === 1 ? point.x : point.y];
      return showTip(shown.event, [short(samples.names[i], 80)], [cellsOf(i), lineOf(coloring, i)]);
    }
    const i = heat.order[point.y], j = heat.order[point.x];
    const names = i === j ? [short(samples.names[i], 80)] : [short(samples.names[i], 80), short(samples.names[j], 80)];
    const lines = ["distance " + digits(distances[point.y][point.x])];
    if (bounds && i !== j) {
      lines.push(heat.confidence + "% interval " + digits(bounds[0][point.y][point.x], 3) + " to " + digits(bounds[1][point.y][point.x], 3));
      if (alike[point.y][point.x]) lines.push("not distinguishable");
    }
    return showTip(shown.event, names, lines);
  }
  /* ---- pairs that are not distinguishable: hatched, as an image that stretches with the axes ---- */
  function unpackAlike() {
    if (!heat.alike) return null;
    const text = atob(heat.alike), n = heat.size;
    const rows = Array.from({ length: n }, () => new Uint8Array(n));
    for (let i = 0, at = 0; i < n; i++)
      for (let j = i + 1; j < n; j++, at++)
        rows[i][j] = rows[j][i] = (text.charCodeAt(at >> 3) >> (7 - (at & 7))) & 1;
    return rows;
  }
  function stripes(context, color) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 14;
    const pen = tile.getContext("2d");
    pen.strokeStyle = color;
    pen.lineWidth = 2.6;
    [[-3, 3, 3, -3], [-3, 17, 17, -3], [11, 17, 17, 11]].forEach(([x, y, toX, toY]) => {
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(toX, toY);
      pen.stroke();
    });
    return context.createPattern(tile, "repeat");
  }
  function hatching() {
    if (!alike) return null;
    const n = heat.size, side = Math.max(2, Math.floor(1200 / n)), canvas = document.createElement("canvas");
    canvas.width = canvas.height = n * side;
    const context = canvas.getContext("2d"), [low, high] = heat.range;
    const onDark = stripes(context, "rgba(255,255,255,0.85)"), onLight = stripes(context, "rgba(20,30,50,0.75)");
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++)
        if (alike[i][j]) {
          context.fillStyle = distances[i][j] < low + 0.55 * (high - low) ? onDark : onLight;
          context.fillRect(j * side, i * side, side, side);
        }
    return canvas.toDataURL();
  }
  const alike = unpackAlike(), hatched = hatching();
  function drawRamp() {
    document.getElementById("ramp").replaceChildren("near, " + digits(heat.range[0], 2), gradient(NEAR), digits(heat.range[1], 2) + ", far");
  }

  /* ---- composition of the samples ---- */
  function barOrder(coloring) {
    const places = heat.order.map((_, at) => at);
    if (state.order === "tree") return { at: places, groups: [] };
    if (coloring.kind !== "groups") {
      const value = (at) => coloring.values[heat.order[at]];
      return { at: places.sort((a, b) => (value(a) === null) - (value(b) === null) || value(a) - value(b) || a - b), groups: [] };
    }
    const code = (at) => (coloring.codes[heat.order[at]] < 0 ? coloring.groups.length : coloring.codes[heat.order[at]]);
    places.sort((a, b) => code(a) - code(b) || a - b);
    const groups = [];
    places.forEach((at, i) => { if (!i || code(at) !== code(places[i - 1])) groups.push({ start: i, code: code(at) }); });
    return { at: places, groups: groups };
  }
  function typeColor(kind) {
    const last = mixture.rest && kind === mixture.types.length - 1;
    return last || kind >= mixture.colors.length ? "#BDBDBD" : mixture.colors[kind];
  }
  function compositionFigure(look, wide) {
    const coloring = samples.colorings[state.coloring], { at, groups } = barOrder(coloring), n = at.length;
    // Leave a gap of one bar between groups.
    const shift = new Array(n).fill(0);
    groups.forEach((group, g) => { for (let i = group.start; i < n; i++) shift[i] = g; });
    const x = at.map((_, i) => i + shift[i]), end = x[n - 1] + 0.7;
    const marks = mixture.types.map((name, kind) => ({
      type: "bar", x: x, y: at.map((row) => mixture.shares[row][kind]), hoverinfo: "none", name: literal(short(name, 40)),
      marker: { color: typeColor(kind), line: { color: look.halo, width: n <= 120 ? 0.5 : 0 } }, customdata: at,
    }));
    const all = colors(coloring, look.missing), used = Array.from(new Set(at.map((row) => all[heat.order[row]])));
    const codes = at.map((row) => used.indexOf(all[heat.order[row]]));
    const strip = { type: "bar", x: x, y: x.map(() => 1), yaxis: "y2", hoverinfo: "none", showlegend: false, customdata: at,
      marker: { color: codes.map((code) => used[code]), line: { width: 0 } } };
    const labeled = n <= MOST_LABELS && wide / (n + groups.length) >= 15;
    const texts = labeled ? at.map((row) => short(samples.names[heat.order[row]], LONGEST)) : [];
    const names = labeled
      ? { showticklabels: true, tickmode: "array", tickvals: x, ticktext: texts.map(literal), tickangle: -90, tickfont: { size: 12, color: look.quiet } }
      : { showticklabels: false };
    const frame = Object.assign(layout(look), {
      barmode: "stack", bargap: n <= 120 ? 0.14 : 0, dragmode: false, uirevision: "composition",
      margin: { l: 54, r: 8, t: 8, b: labeled ? 20 + 7.5 * Math.max(0, ...texts.map((text) => Array.from(text).length)) : 10 },
      xaxis: Object.assign({ range: [-0.7, end], showgrid: false, zeroline: false, ticks: "", fixedrange: true, anchor: "y2" }, names),
      yaxis: { domain: [0.07, 1], range: [0, 1], tickvals: [0, 0.25, 0.5, 0.75, 1], ticktext: ["0", "25%", "50%", "75%", "100%"], fixedrange: true,
        tickfont: { size: 12, color: look.quiet }, gridcolor: look.line, zeroline: false },
      yaxis2: { domain: [0, 0.05], range: [0, 1], showticklabels: false, showgrid: false, zeroline: false, fixedrange: true },
    });
    return { data: marks.concat([strip]), layout: frame };
  }
  function drawComposition() {
    if (!bars) return;
    const made = compositionFigure(theme(), bars.clientWidth);
    Plotly.react(bars, made.data, made.layout, CONFIG);
    document.getElementById("types-legend").replaceChildren(
      element("bdi", "title", short(mixture.annotation, 40)),
      ...mixture.types.map((name, kind) => item(typeColor(kind), "square", short(name, 40))));
  }
  function hoverComposition(shown) {
    const point = shown.points[0], row = point.customdata, i = heat.order[row], coloring = samples.colorings[state.coloring];
    const name = mixture.types[point.curveNumber];
    const lines = name === undefined ? [] : [short(name, 60) + ": " + digits(100 * mixture.shares[row][point.curveNumber], 3) + "%"];
    showTip(shown.event, [short(samples.names[i], 80)], lines.concat([cellsOf(i), lineOf(coloring, i)]));
  }

  /* ---- cells on a map ---- */
  // Purple: lower density; gray: equal density; orange: higher density. The gray is visible on light and dark pages.
  const DIVERGING = ["#542788", "#8073ac", "#b2abd2", "#b4b4b4", "#fdb863", "#e08214", "#b35806"];
  // Not called, denser in the group, denser in the reference.
  const CALLED = ["#c8c8c8", "#e08214", "#542788"];
  function cellColors(choice, look) {
    if (choice.kind === "calls") return choice.codes.map((code) => CALLED[code]);
    if (choice.kind === "witness") return choice.values.map((value) => rampColor(DIVERGING, (value + 1) / 2));
    if (choice.kind === "types") return choice.codes.map((code) => (code >= cells.colors.length ? "#BDBDBD" : cells.colors[code]));
    const all = colors(samples.colorings[choice.place], look.missing);
    return cells.samples.map((i) => all[i]);
  }
  function cellText(choice, i) {
    if (choice.kind === "witness") return choice.name + ": " + digits(choice.values[i], 2);
    if (choice.kind === "types" || choice.kind === "calls") return choice.name + ": " + short(choice.groups[choice.codes[i]], 80);
    return lineOf(samples.colorings[choice.place], cells.samples[i]);
  }
  function cellFigure(look) {
    const choice = cells.choices[state.cellColor], all = choice ? cellColors(choice, look) : cells.x.map(() => look.quiet);
    // Draw the cells with the largest differences last.
    const order = cells.x.map((_, i) => i);
    if (choice && choice.kind === "calls") order.sort((a, b) => Math.sign(choice.codes[a]) - Math.sign(choice.codes[b]));
    if (choice && choice.kind === "witness") order.sort((a, b) => Math.abs(choice.values[a]) - Math.abs(choice.values[b]));
    const axis = (text) => ({ title: { text: literal(short(text, 40)), font: { size: 13, color: look.quiet } }, showgrid: false, zeroline: false, showticklabels: false, linecolor: look.faint });
    const marks = { type: "scatter", mode: "markers", x: order.map((i) => cells.x[i]), y: order.map((i) => cells.y[i]), customdata: order, hoverinfo: "none",
      marker: { color: order.map((i) => all[i]), size: order.length <= 1000 ? 5 : 3.5, opacity: 0.85, line: { width: 0 } } };
    const frame = Object.assign(layout(look), { margin: { l: 30, r: 8, t: 8, b: 34 }, uirevision: "cells", xaxis: axis(cells.title + " 1"), yaxis: axis(cells.title + " 2") });
    frame.yaxis.scaleanchor = "x";
    return { data: [marks], layout: frame };
  }
  function cellEntries(choice, look) {
    if (choice.kind === "calls") return choice.groups.map((name, code) => [short(name, 80), CALLED[code]]);
    if (choice.kind === "witness") return [["more " + short(cells.groups[0], 40), 1], ["equal", 0.5], ["more " + short(cells.groups[1], 40), 0]].map(([name, share]) => [name, rampColor(DIVERGING, share)]);
    if (choice.kind === "types") return choice.groups.map((name, kind) => [short(name, 40), kind >= cells.colors.length ? "#BDBDBD" : cells.colors[kind]]);
    const coloring = samples.colorings[choice.place], known = coloring.groups.map((name, code) => [short(name, 40), groupColor(code)]);
    return coloring.codes.some((code) => code < 0) ? known.concat([["missing", look.missing]]) : known;
  }
  function drawCells() {
    if (!cellPlot) return;
    const look = theme(), made = cellFigure(look), choice = cells.choices[state.cellColor];
    Plotly.react(cellPlot, made.data, made.layout, CONFIG);
    document.getElementById("cellmap-legend").replaceChildren(
      ...(choice ? cellEntries(choice, look).map(([name, color]) => item(color, "circle", name)) : []));
  }
  function hoverCell(shown) {
    const i = shown.points[0].customdata, choice = cells.choices[state.cellColor];
    showTip(shown.event, ["a cell of " + short(samples.names[cells.samples[i]], 80)], cells.choices.map((one) => cellText(one, i)));
  }

  /* ---- saving pictures and tables, made from the data in the page ---- */
  function onPaper(make) {
    // Use the light theme for pictures and print, whatever the theme of the screen.
    document.documentElement.dataset.theme = "light";
    const look = theme();
    delete document.documentElement.dataset.theme;
    return make(Object.assign(look, { paper: "#ffffff" }));
  }
  function asLegend(coloring, look) {
    // Marks without a position, one for each line of the legend.
    const entry = (name, color, shape) => ({ type: "scatter", mode: "markers", x: [null], y: [null], name: literal(name), showlegend: true, marker: { color: color, symbol: shape, size: 10 } });
    if (coloring.kind === "groups") {
      const known = coloring.groups.map((group, code) => entry(short(group, 40) + " (" + coloring.counts[code] + ")", groupColor(code), SHAPES[code % SHAPES.length]));
      const absent = coloring.codes.filter((code) => code < 0).length;
      return absent ? known.concat([entry("missing (" + absent + ")", look.missing, "circle-open")]) : known;
    }
    const [low, high] = extent(coloring);
    return [0, 0.25, 0.5, 0.75, 1].map((share) => entry(digits(low + share * (high - low), 3), rampColor(VIRIDIS, share), "circle"));
  }
  function withLegend(made, entries, title, look, size) {
    // Put the legend below the picture. The picture keeps its size, so all names still fit.
    const rows = Math.ceil(entries.reduce((sum, one) => sum + 46 + 7.5 * (one.name || "").length, 8 * title.length) / Math.max(size[0] - 80, 200)) + 1;
    const more = 24 + 22 * rows;
    made.layout = Object.assign({}, made.layout, {
      paper_bgcolor: look.paper, plot_bgcolor: look.paper, showlegend: true,
      margin: Object.assign({}, made.layout.margin, { b: made.layout.margin.b + more }),
      legend: { orientation: "h", x: 0, xanchor: "left", xref: "container", y: 0, yanchor: "bottom", yref: "container", traceorder: "normal", itemwidth: 30,
        title: { text: literal(title) + " " }, font: { size: 12, color: look.ink } },
    });
    made.data = made.data.map((one) => Object.assign({ showlegend: false }, one)).concat(entries);
    made.size = [size[0], size[1] + more];
    return made;
  }
  const PICTURES = {
    map: (look) => {
      const map = maps[state.map], coloring = samples.colorings[state.coloring], found = matching();
      const frame = mapFrame(map, look), shown = figure._fullLayout;
      frame.xaxis.range = shown.xaxis.range.slice();
      frame.yaxis.range = shown.yaxis.range.slice();
      const names = Object.assign({}, figure.data[2], { textfont: { size: NAME_SIZE, color: look.quiet } });
      return withLegend({ data: [nearestLines(map, look), marksOf(map, coloring, found, look), names, pairLines(map, look)], layout: frame },
        asLegend(coloring, look), short(coloring.name, 40), look, [figure.clientWidth, figure.clientHeight]);
    },
    heatmap: (look) => {
      const made = heatmapFigure(look), coloring = samples.colorings[state.coloring], wide = 96;
      made.data[0].showscale = true;
      made.data[0].colorbar = { title: { text: "distance" }, len: 0.5, y: 1, yanchor: "top", x: 1, xref: "container", xanchor: "right", thickness: 14, tickfont: { size: 12, color: look.ink } };
      made.layout.margin.r += wide;
      // Marks of the legend get their own axes in the empty corner; on the axes of the samples, they would change the order.
      made.layout.xaxis3 = { domain: [0, 0.03], visible: false };
      made.layout.yaxis3 = { domain: [0.97, 1], visible: false, anchor: "x3" };
      const entries = asLegend(coloring, look).map((one) => Object.assign(one, { xaxis: "x3", yaxis: "y3" }));
      return withLegend(made, entries, short(coloring.name, 40), look, [matrix.clientWidth + wide, matrix.clientHeight]);
    },
    composition: (look) => {
      const made = compositionFigure(look, bars.clientWidth), size = [bars.clientWidth, bars.clientHeight];
      const named = made.data.slice(0, -1).map((one) => Object.assign({}, one, { showlegend: true }));
      const coloring = samples.colorings[state.coloring], before = literal(short(coloring.name, 20)) + ": ";
      const strip = asLegend(coloring, look).map((one) => Object.assign(one, { name: before + one.name, type: "bar", marker: { color: one.marker.color } }));
      return withLegend({ data: made.data.slice(-1), layout: made.layout }, named.concat(strip), short(mixture.annotation, 40), look, size);
    },
    cellmap: (look) => {
      const choice = cells.choices[state.cellColor];
      const entries = choice ? cellEntries(choice, look).map(([name, color]) => ({ type: "scatter", mode: "markers", x: [null], y: [null], name: literal(name), showlegend: true, marker: { color: color, size: 10 } })) : [];
      return withLegend(cellFigure(look), entries, choice ? short(choice.name, 40) : "", look, [cellPlot.clientWidth, cellPlot.clientHeight]);
    },
    cells: (look) => {
      const found = data.sections.cells, [number, state] = found.colors;
      const shades = (color, sure) => sure.map((one) => (one ? color : mix(color, "#ffffff", 0.7)));
      return barPicture(look, found.types, [
        { name: "abundance", values: found.numbers, colors: shades(number, found.sure_numbers), edge: number },
        { name: `cell state (pale: ${found.pale})`, values: found.states, colors: shades(state, found.sure_states), edge: state },
      ], "share of the distance");
    },
    scales: (look) => {
      const found = data.sections.scales;
      return barPicture(look, found.steps.map((steps) => steps.toLocaleString("en") + (steps === 1 ? " step" : " steps")),
        [{ name: "share of the mean distance", values: found.shares, color: "#0b5c8f" }], "share of the mean distance");
    },
  };
  function barPicture(look, names, series, title) {
    const labels = names.map((name) => literal(short(name, 40)));
    const traces = series.map((one) => ({ type: "bar", orientation: "h", y: labels.map((_, i) => i), x: one.values.map((value) => 100 * value), name: literal(one.name),
      marker: { color: one.colors || one.color, line: { color: one.edge || one.color, width: 1 } } }));
    const longest = Math.max(...names.map((name) => Math.min(Array.from(name).length, 40)));
    const frame = Object.assign(layout(look), {
      paper_bgcolor: look.paper, plot_bgcolor: look.paper, barmode: "group", bargap: 0.3, showlegend: series.length > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      margin: { l: 24 + 7.5 * longest, r: 30, t: series.length > 1 ? 50 : 12, b: 50 },
      xaxis: { title: { text: title }, ticksuffix: "%", gridcolor: look.line, zeroline: true, zerolinecolor: look.quiet },
      yaxis: { autorange: "reversed", tickmode: "array", tickvals: labels.map((_, i) => i), ticktext: labels, showgrid: false, zeroline: false },
    });
    return { data: traces, layout: frame, size: [900, 110 + names.length * (12 + 18 * series.length)] };
  }
  function offer(blob, name) {
    const link = element("a"), address = URL.createObjectURL(blob);
    link.href = address;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    window.setTimeout(() => URL.revokeObjectURL(address), 60000);
  }
  function bytesOf(address) {
    const comma = address.indexOf(","), body = address.slice(comma + 1);
    if (!address.slice(0, comma).endsWith(";base64")) return decodeURIComponent(body);
    return Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
  }
  function savePicture(key, format) {
    const made = onPaper(PICTURES[key]);
    const options = { format: format, width: made.size[0], height: made.size[1], scale: format === "png" ? 2 : 1 };
    return Plotly.toImage({ data: made.data, layout: made.layout, config: { staticPlot: true } }, options)
      .then((address) => offer(new Blob([bytesOf(address)], { type: format === "png" ? "image/png" : "image/svg+xml" }), key + "." + format));
  }
  function save(event) {
    const { section, format } = event.currentTarget.dataset;
    if (format === "csv") offer(new Blob([data.tables[section]], { type: "text/csv;charset=utf-8" }), section + ".csv");
    else savePicture(section, format);
  }

  /* ---- actions of the reader ---- */
  function drawAll() {
    drawLegends(samples.colorings[state.coloring], theme().missing);
    drawMap();
    drawHeatmap();
    drawComposition();
    drawCells();
  }
  function choose(event) {
    state.coloring = Number(event.target.value);
    document.querySelectorAll(".color-choice").forEach((menu) => { menu.value = String(state.coloring); });
    drawAll();
  }
  function copied(done) {
    document.getElementById("copied").textContent = done ? "Copied." : "Selected: press Ctrl+C or Cmd+C.";
  }
  function copy() {
    // In some browsers, a page opened from disk cannot use the clipboard; copying a selection works in all browsers.
    const range = document.createRange(), selection = window.getSelection();
    range.selectNodeContents(document.getElementById("methods-text"));
    selection.removeAllRanges();
    selection.addRange(range);
    let done = false;
    try { done = document.execCommand("copy"); } catch (error) { done = false; }
    copied(done);
  }
  document.querySelectorAll(".color-choice").forEach((menu) => {
    menu.value = String(state.coloring);
    menu.addEventListener("change", choose);
  });
  const mapMenu = document.getElementById("map-choice"), lines = document.getElementById("lines");
  mapMenu.value = "0";
  mapMenu.addEventListener("change", () => { state.map = Number(mapMenu.value); drawMap(); });
  lines.checked = state.lines;
  lines.addEventListener("change", () => { state.lines = lines.checked; drawMap(); });
  const pairBox = document.getElementById("pairs");
  if (pairBox) {
    pairBox.checked = state.pairs;
    pairBox.addEventListener("change", () => { state.pairs = pairBox.checked; drawMap(); });
  }
  const nameBox = document.getElementById("names");
  nameBox.checked = state.names;
  nameBox.addEventListener("change", () => { state.names = nameBox.checked; drawNames(); });
  document.querySelectorAll("button.save").forEach((button) => button.addEventListener("click", save));
  if (bars) {
    const orderMenu = document.getElementById("bar-order");
    orderMenu.value = state.order;
    orderMenu.addEventListener("change", () => { state.order = orderMenu.value; drawComposition(); });
  }
  const cellMenu = document.getElementById("cellmap-choice");
  if (cellMenu) {
    cellMenu.value = "0";
    cellMenu.addEventListener("change", () => { state.cellColor = Number(cellMenu.value); drawCells(); });
  }
  document.getElementById("find").addEventListener("input", (event) => { state.find = event.target.value; drawMap(); });
  document.getElementById("copy").addEventListener("click", copy);
  drawAll();
  drawRamp();
  figure.on("plotly_hover", hoverMap);
  // After zooming in, more names fit.
  figure.on("plotly_relayout", drawNames);
  matrix.on("plotly_hover", hoverHeatmap);
  if (bars) bars.on("plotly_hover", hoverComposition);
  if (cellPlot) cellPlot.on("plotly_hover", hoverCell);
  [figure, matrix, bars, cellPlot].filter(Boolean).forEach((plot) => {
    plot.on("plotly_unhover", hideTip);
    plot.addEventListener("mouseleave", hideTip);
  });
  // A touch screen does not report that a finger left a figure, so hide the tip when something else is touched.
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".figure")) hideTip(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach((details) => { details.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
  window.addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; drawAll(); });
  window.addEventListener("afterprint", () => { delete document.documentElement.dataset.theme; drawAll(); });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; drawMap(); drawHeatmap(); drawComposition(); drawCells(); } });
  document.documentElement.dataset.ready = "yes";
})();
