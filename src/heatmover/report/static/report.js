/* Draws the figures of the report from the data in the page. Names reach the page only as text nodes. */
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const samples = data.shared, maps = data.sections.map.maps, heat = data.sections.heatmap;
  const count = samples.names.length;
  // Okabe and Ito's colours without grey, which is for what is missing; further rounds are lighter and darker.
  const BASE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  const SHAPES = ["circle", "triangle-up", "square", "diamond", "triangle-down", "cross", "x"];
  const ROUNDS = [0, 0.45, -0.4, 0.7, -0.65];
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  const NEAR = heat.colors;
  const MOST_LABELS = 60, LONGEST = 22;
  const state = { coloring: samples.first, map: 0, lines: count <= 60, find: "" };
  const tip = document.getElementById("tip");
  const figure = document.getElementById("sample-map"), matrix = document.getElementById("heatmap-figure");

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
    // Letters that steer the direction of writing or the line would disturb what stands beside the name.
    const line = Array.from(text.replace(/\s+/g, " ").replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd"));
    if (!text.trim()) return "(blank)";
    return line.length <= longest ? line.join("") : line.slice(0, longest - 1).join("") + "\u2026";
  }
  // Plotly takes a few tags in texts for its own, and dollars for mathematics.
  function literal(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  }

  /* ---- colours ---- */
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
    document.querySelectorAll(".legend").forEach((box) => {
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
    // In the page, not in the window: it stays with its sample when the reader scrolls.
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
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", size: 13, color: look.ink },
      // A finger on a figure is to scroll the page.
      dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
  }
  const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showTips: false };
  function nearestLines(map, look) {
    const x = [], y = [];
    if (state.lines) samples.nearest.forEach((other, i) => { x.push(map.x[i], map.x[other], null); y.push(map.y[i], map.y[other], null); });
    return { type: "scatter", mode: "lines", x: x, y: y, hoverinfo: "skip", line: { color: look.faint, width: 1.2 } };
  }
  function matching() {
    const wanted = state.find.trim().toLowerCase();
    return wanted ? samples.names.map((name) => name.toLowerCase().includes(wanted)) : null;
  }
  function drawMap() {
    const look = theme(), map = maps[state.map], coloring = samples.colorings[state.coloring], found = matching();
    const symbols = shapes(coloring), size = count <= 100 ? 11 : count <= 400 ? 8 : count <= 2000 ? 6.5 : 4.5;
    const marks = {
      type: "scatter", mode: "markers", x: map.x, y: map.y, hoverinfo: "none",
      marker: {
        color: colors(coloring, look.missing), symbol: symbols,
        size: symbols.map((symbol, i) => size * (symbol.startsWith("triangle") ? 1.2 : 1) * (found && found[i] ? 1.5 : 1)),
        opacity: found ? found.map((hit) => (hit ? 1 : 0.12)) : count <= 400 ? 0.95 : 0.8,
        line: { color: look.halo, width: count <= 400 ? 1 : 0.5 },
      },
    };
    const axis = (i) => ({
      title: { text: map.axes[i], font: { size: 13, color: look.quiet } }, gridcolor: look.line, zeroline: false,
      linecolor: look.faint, tickfont: { size: 12, color: look.quiet }, nticks: 6, automargin: true,
    });
    const frame = Object.assign(layout(look), { margin: { l: 54, r: 12, t: 10, b: 46 }, xaxis: axis(0), yaxis: axis(1) });
    // A length is the same in both directions, as in any map of distances.
    if (state.map === 0) frame.yaxis.scaleanchor = "x";
    // A choice of colours keeps the part one had zoomed to; another map is another place.
    frame.uirevision = "map" + state.map;
    Plotly.react(figure, [nearestLines(map, look), marks], frame, CONFIG);
    document.getElementById("found").textContent =
      found ? found.filter(Boolean).length.toLocaleString("en") + " of " + count.toLocaleString("en") + " samples found" : "";
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
    // Every value gets its own colour: steps, not a passage from one to the next.
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
  function drawHeatmap() {
    const look = theme(), coloring = samples.colorings[state.coloring], n = heat.size;
    const ramp = NEAR.map((color, i) => [i / (NEAR.length - 1), color]);
    const main = { type: "heatmap", x: places, y: places, z: distances, hoverinfo: "none", showscale: false, colorscale: ramp, zmin: heat.range[0], zmax: heat.range[1] };
    // Names only where there is room to read them.
    const labelled = n <= MOST_LABELS && matrix.clientWidth / n >= 13 && matrix.clientWidth >= 520;
    const axis = { range: [-0.5, n - 0.5], showgrid: false, zeroline: false, ticks: "", showticklabels: false, constrain: "domain" };
    const thin = { domain: [0, 0.03], showgrid: false, zeroline: false, ticks: "", showticklabels: false, fixedrange: true };
    const texts = labelled ? heat.order.map((i) => short(samples.names[i], LONGEST)) : [];
    const names = labelled
      ? { showticklabels: true, tickmode: "array", tickvals: places, ticktext: texts.map(literal), tickfont: { size: 12, color: look.quiet },
          ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)" }
      : {};
    const room = 20 + 8 * Math.max(0, ...texts.map((text) => text.length));
    const frame = Object.assign(layout(look), {
      margin: { l: 8, r: labelled ? room : 8, t: 8, b: 8 },
      xaxis: Object.assign({ domain: [0.04, 1] }, axis), yaxis: Object.assign({ domain: [0, 0.96], side: "right" }, axis, names, { range: [n - 0.5, -0.5] }),
      xaxis2: Object.assign({}, thin), yaxis2: Object.assign({}, thin, { domain: [0.97, 1] }), uirevision: "heatmap",
    });
    if (hatched)
      frame.images = [{ source: hatched, xref: "x", yref: "y", x: -0.5, y: -0.5, sizex: n, sizey: n, sizing: "stretch", layer: "above" }];
    Plotly.react(matrix, [main].concat(strips(coloring, look)), frame, CONFIG);
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
      lines.push(heat.confidence + " % interval " + digits(bounds[0][point.y][point.x], 3) + " to " + digits(bounds[1][point.y][point.x], 3));
      if (alike[point.y][point.x]) lines.push("cannot be told apart");
    }
    return showTip(shown.event, names, lines);
  }
  /* ---- pairs that cannot be told apart: hatched, as an image that stretches with the axes ---- */
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

  /* ---- what a reader does ---- */
  function drawAll() {
    drawLegends(samples.colorings[state.coloring], theme().missing);
    drawMap();
    drawHeatmap();
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
    // Files opened from disk have no clipboard in some browsers; a selection works everywhere.
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
  document.getElementById("find").addEventListener("input", (event) => { state.find = event.target.value; drawMap(); });
  document.getElementById("copy").addEventListener("click", copy);
  drawAll();
  drawRamp();
  figure.on("plotly_hover", hoverMap);
  matrix.on("plotly_hover", hoverHeatmap);
  [figure, matrix].forEach((plot) => {
    plot.on("plotly_unhover", hideTip);
    plot.addEventListener("mouseleave", hideTip);
  });
  // A finger never leaves a figure; it touches something else.
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".figure")) hideTip(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; drawAll(); });
  window.addEventListener("afterprint", () => { delete document.documentElement.dataset.theme; drawAll(); });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; drawHeatmap(); } });
  document.documentElement.dataset.ready = "yes";
})();
