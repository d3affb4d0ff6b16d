"use strict";
// Charts that say where you are, show the kept plan beside this one, and answer under the mouse.

const charts = {};

// A number in few letters, for axes and tooltips.
function short(value) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  return plain(Number(value.toPrecision(3)));
}
const plain = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value));

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A dot at each of `points`, with its word on a halo, so that lines behind it do not cross it out.
function marks(points) {
  return (plot) => {
    const { ctx } = plot;
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px system-ui`;
    for (const { x, y, word, style } of points) {
      if (!Number.isFinite(x) || !Number.isFinite(y)) continue;
      const left = plot.valToPos(x, "x", true);
      const top = plot.valToPos(y, "y", true);
      ctx.fillStyle = colour(style);
      ctx.beginPath();
      ctx.arc(left, top, 5 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
      const { left: edge, width } = plot.bbox;
      const right = left > edge + width * 0.7;
      ctx.textAlign = right ? "right" : "left";
      const place = [left + (right ? -9 : 9) * devicePixelRatio, top - 8 * devicePixelRatio];
      ctx.strokeStyle = colour("--card");
      ctx.lineWidth = 4 * devicePixelRatio;
      ctx.lineJoin = "round";
      ctx.strokeText(word, ...place);
      ctx.fillText(word, ...place);
    }
    ctx.restore();
  };
}

// What stands under the mouse, in words.
function tooltip(axes, names) {
  let shown;
  return {
    init: (plot) => {
      shown = document.createElement("div");
      shown.className = "tooltip";
      shown.hidden = true;
      plot.over.append(shown);
    },
    setCursor: (plot) => {
      const { idx, left, top } = plot.cursor;
      shown.hidden = idx == null || left < 0;
      if (shown.hidden) return;
      const lines = names.map((name, index) => [name, plot.data[index + 1][idx]]).filter(([, value]) => value != null);
      shown.textContent = [`${axes.x} ${short(plot.data[0][idx])}`, ...lines.map(([name, value]) => `${name} ${short(value)}`)].join(" · ");
      const room = plot.over.clientWidth - shown.offsetWidth;
      shown.style.left = `${Math.max(0, Math.min(left + 8, room))}px`;
      shown.style.top = `${Math.max(0, top - 34)}px`;
    },
  };
}

// Lines of this plan are whole, those of the kept one dashed. `lines`: [{label, x, y, style, dashed}].
function draw(id, lines, axes, points = []) {
  const place = document.getElementById(id);
  const tables = lines.map((line) => [line.x, line.y]);
  const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
  const names = lines.map((line) => line.label);
  const ink = colour("--soft");
  const axis = (label, size) => ({
    label, size, stroke: ink, grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, labelSize: 20, labelFont: "12px system-ui",
    values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : short(tick))),
  });
  const words = tooltip(axes, names);
  charts[id]?.destroy();
  charts[id] = new uPlot({
    width: Math.max(220, place.clientWidth), height: 220, cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: lines.length > 1, live: false },
    scales: {
      x: { time: false, distr: axes.logX ? 3 : 1 },
      y: { distr: axes.logY ? 3 : 1, range: axes.logY ? undefined : (_, low, high) => [axes.low ?? 0, axes.high ?? high * 1.05] },
    },
    series: [{}, ...lines.map(({ label, style, dashed }) => ({ label, stroke: colour(style), width: 2, dash: dashed ? [6, 4] : undefined, spanGaps: true, points: { show: false } }))],
    axes: [axis(axes.x, 30), axis(axes.y, 48)],
    hooks: { init: [words.init], setCursor: [words.setCursor], draw: [marks(points)] },
  }, data, place);
  place.dataset.marks = String(points.length);
}
