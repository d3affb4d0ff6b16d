"use strict";
// The page holds the positions of the sliders; every number comes from the accountant.

const SLIDERS = [
  // name, label, least, most, start, whole numbers only
  ["records", "records", 100, 1e8, 60000, true],
  ["batch_size", "expected batch size", 1, 1e6, 600, true],
  ["epochs", "epochs", 0.1, 1000, 10, false],
  ["clip_norm", "clip norm", 0.01, 100, 1, false],
  ["dimension", "parameters", 1, 1e9, 1000, true],
];
const PRIVACY = [
  ["noise_multiplier", "noise multiplier", 0.3, 100, 1.2, false],
  ["epsilon", "epsilon", 0.01, 20, 1, false],
  ["delta", "delta", 1e-12, 1e-3, 1e-6, false],
];
const STEPS = 600;
const byId = (id) => document.getElementById(id);
const form = byId("wish");
const wish = { sampling: "poisson", neighbours: "add-remove", fixed: "noise" };
let kept = null;
let latest = 0;

function short(value) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  return plain(Number(value.toPrecision(3)));
}
const plain = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value));
// Bounds are rounded away from the truth: the upper one never down.
function roundedUp(value, digits = 4) {
  if (!Number.isFinite(value) || value <= 0) return String(value);
  const unit = 10 ** (Math.floor(Math.log10(value)) - digits + 1);
  return String(Number((Math.ceil(value / unit - 1e-9) * unit).toPrecision(digits)));
}
function roundedDown(value, digits = 4) {
  if (!Number.isFinite(value) || value <= 0) return String(value);
  const unit = 10 ** (Math.floor(Math.log10(value)) - digits + 1);
  return String(Number((Math.floor(value / unit + 1e-9) * unit).toPrecision(digits)));
}

function addSlider(place, [name, label, least, most, start, whole]) {
  const row = document.createElement("div");
  row.className = "slider";
  row.id = `row-${name}`;
  const caption = document.createElement("label");
  caption.htmlFor = `value-${name}`;
  caption.textContent = label;
  const value = document.createElement("input");
  Object.assign(value, { type: "text", id: `value-${name}`, inputMode: "decimal", autocomplete: "off" });
  caption.append(value);
  const range = document.createElement("input");
  Object.assign(range, { type: "range", min: 0, max: STEPS, step: 1, id: `slider-${name}` });
  range.setAttribute("aria-label", label);
  const position = (number) => (Math.log(number / least) / Math.log(most / least)) * STEPS;
  const numberAt = (place) => {
    const number = Number((least * (most / least) ** (place / STEPS)).toPrecision(3));
    return whole ? Math.round(number) : number;
  };
  const set = (number) => {
    wish[name] = number;
    value.value = plain(number);
    range.value = position(number);
    range.setAttribute("aria-valuetext", short(number));
  };
  range.addEventListener("input", () => { set(numberAt(Number(range.value))); changed(); });
  value.addEventListener("change", () => { wish[name] = Number(value.value); range.value = position(wish[name]); changed(); });
  row.append(caption, range);
  place.append(row);
  set(start);
}

// The token stands behind the # of the address, which browsers do not send; it is kept for this tab and hidden.
const TOKEN = "discreet-token";
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem(TOKEN, location.hash.slice(7));
  history.replaceState(null, "", location.pathname);
}
const known = { "X-Discreet-Token": sessionStorage.getItem(TOKEN) ?? "" };

async function ask(path, body) {
  const headers = { "Content-Type": "application/json", ...known };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error);
  return data;
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

function show(prefix, answer) {
  const { lower, upper } = answer.epsilon;
  byId(`${prefix}epsilon`).textContent = `ε ≤ ${roundedUp(upper)}`;
  byId(`${prefix}bounds`).textContent = `certified: between ${roundedDown(lower, 5)} and ${roundedUp(upper, 5)} at delta ${short(answer.delta)}`;
  const numbers = [
    ["steps", short(answer.steps)],
    ["sampling rate", short(answer.rate)],
    ["noise multiplier", short(answer.noise_multiplier)],
    ["noise per coordinate of the mean", short(answer.noise_per_coordinate)],
    ["signal to noise, whole run", short(answer.signal_to_noise)],
  ];
  byId(`${prefix}numbers`).replaceChildren(...numbers.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  }));
}

// While a slider moves only the newest position is asked for: one question at a time, the last one always answered.
let busy = false;
let waiting = false;
let pause = null;
function changed() {
  latest += 1;
  byId("row-noise_multiplier").classList.toggle("follows", wish.fixed === "epsilon");
  byId("row-epsilon").classList.toggle("follows", wish.fixed === "noise");
  if (busy) { waiting = true; return; }
  refresh();
}
async function refresh() {
  busy = true;
  waiting = false;
  const asked = latest;
  const start = performance.now();
  try {
    const answer = await ask("/api/price", wish);
    show("", answer);
    follow(answer);
    problem("");
    byId("latency").textContent = String(Math.round(performance.now() - start));
    document.body.dataset.answered = String(asked);
  } catch (error) {
    byId("epsilon").textContent = "–";
    problem(error.message);
  }
  busy = false;
  if (waiting) refresh();
  else { clearTimeout(pause); pause = setTimeout(refreshCurves, 150); }
}
function follow(answer) {
  const [name, value] = wish.fixed === "epsilon" ? ["noise_multiplier", answer.noise_multiplier] : ["epsilon", answer.epsilon.upper];
  byId(`value-${name}`).value = roundedUp(value);
}

const charts = {};
function draw(id, data, series, axes) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--soft").trim();
  const colours = ["--main", "--second", "--soft"].map((name) => style.getPropertyValue(name).trim());
  const rule = style.getPropertyValue("--rule").trim();
  const axis = (label, size) => ({
    label, size, stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { show: false }, labelSize: 20, labelFont: "12px system-ui",
    values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : short(tick))),
  });
  const place = byId(id);
  charts[id]?.destroy();
  charts[id] = new uPlot({
    width: Math.max(240, place.clientWidth), height: 220, cursor: { show: false }, legend: { show: series.length > 1, live: false },
    scales: { x: { time: false, distr: axes.logX ? 3 : 1 }, y: { distr: axes.logY ? 3 : 1, range: axes.logY ? undefined : (_, low, high) => [0, high * 1.05] } },
    series: [{}, ...series.map((label, index) => ({ label, stroke: colours[index], width: 2, points: { show: false } }))],
    axes: [axis(axes.x, 30), axis(axes.y, 48)],
  }, data, place);
}
async function refreshCurves() {
  const asked = latest;
  try {
    const answer = await ask("/api/curves", wish);
    if (asked !== latest) return;
    draw("chart-attack", [answer.attack.alarms, answer.attack.hits, answer.attack.alarms], ["best attack", "guessing"], { x: "false alarms", y: "records found" });
    byId("attack-words").textContent = `At ${100 * answer.alarms} % false alarms the best attack finds at most ${roundedUp(100 * answer.hits, 3)} % of the records that were used.`;
    draw("chart-steps", [answer.steps.steps, answer.steps.epsilon], ["epsilon"], { x: "steps", y: "epsilon" });
    draw("chart-frontier", [answer.frontier.epsilon, answer.frontier.noise], ["noise multiplier"], { x: "epsilon", y: "noise multiplier", logX: true, logY: true });
    draw("chart-clip", [answer.clip.clip, answer.clip.error, answer.clip.bias, answer.clip.noise], ["error, at most", "bias", "noise"], { x: "clip norm / typical record", y: "error", logX: true, logY: true });
    byId("clip-words").textContent = `Best clip norm for this budget: ${short(answer.clip.best)} times the root mean square of the records.`;
    document.body.dataset.drawn = String(asked);
  } catch (error) {
    if (asked === latest) problem(error.message);
  }
}

byId("keep").addEventListener("click", async () => {
  kept = { ...wish };
  show("kept-", await ask("/api/price", kept));
  byId("card-kept").hidden = false;
});
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    try {
      const text = (await ask("/api/export", wish))[button.dataset.copy];
      byId("exported").textContent = text;
      byId("exported").hidden = false;
      const link = byId("download");
      link.hidden = button.dataset.copy !== "plan";
      if (!link.hidden) link.href = `data:application/json,${encodeURIComponent(text)}`;
      await navigator.clipboard?.writeText(text).catch(() => {});
    } catch (error) { problem(error.message); }
  });
}
for (const choice of form.querySelectorAll("select, input[type=radio]")) {
  choice.addEventListener("change", () => { wish[choice.name] = choice.value; changed(); });
}
async function showLedger() {
  const { ledger } = await (await fetch("/api/ledger", { headers: known })).json();
  if (!ledger) return;
  byId("ledger").hidden = false;
  byId("ledger-promise").textContent = `Budget: epsilon ${ledger.epsilon}, delta ${ledger.delta} (${ledger.kind}, ${ledger.neighbours}). Promised: ${ledger.promise}.`;
  byId("ledger").querySelector("tbody").replaceChildren(...ledger.runs.map((run) => {
    const row = document.createElement("tr");
    for (const text of [run.name, run.plan, short(run.taken), short(run.planned)]) {
      const cell = document.createElement("td");
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  }));
}

SLIDERS.forEach((slider) => addSlider(byId("sliders"), slider));
PRIVACY.forEach((slider) => addSlider(byId("privacy"), slider));
window.addEventListener("resize", () => { clearTimeout(pause); pause = setTimeout(refreshCurves, 300); });
form.addEventListener("submit", (event) => event.preventDefault());
changed();
showLedger();
