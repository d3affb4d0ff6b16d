"use strict";
// The page holds the positions of the sliders; every number comes from the accountant.

const WORDS = {
  records: "The number of records. It is declared and public, never counted.",
  batch_size: "The average number of records in a step.",
  epochs: "The average number of times that each record is used.",
  clip_norm: "The contribution of one record to a step is clipped to this norm.",
  dimension: "The number of parameters of the model.",
  noise_multiplier: "The standard deviation of the noise on a sum, in units of the clip norm.",
  epsilon: "The most the results can reveal about one record: probabilities change by at most a factor of e to the epsilon.",
  delta: "The probability that is added to the bound; choose it well below one over the number of records.",
  columns: "Columns after encoding: a category with five values counts as five.",
  best: "The accuracy that you hope for without privacy.",
  parties: "The number of organisations that take part.",
  rounds: "The number of noisy sums that every party sends.",
  colluders: "The number of parties that may combine their knowledge.",
};
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
const TABLE = [
  ["records", "records", 100, 1e7, 2000, true],
  ["columns", "columns", 1, 1000, 20, true],
  ["best", "accuracy without privacy", 0.51, 0.999, 0.9, false],
  ["delta", "delta", 1e-12, 1e-3, 1e-6, false],
];
const PARTIES = [
  ["parties", "parties", 2, 50, 3, true],
  ["records", "records of each", 10, 1e6, 1000, true],
  ["rounds", "rounds", 1, 1e5, 200, true],
  ["colluders", "colluding parties", 0, 20, 0, true],
  ["epsilon", "epsilon, for the coordinator", 0.01, 20, 1, false],
  ["delta", "delta", 1e-12, 1e-3, 1e-6, false],
];
const STEPS = 600;
const byId = (id) => document.getElementById(id);
const wish = { sampling: "poisson", neighbours: "add-remove", fixed: "noise" };
const table = {};
const parties = { aggregation: "plain" };
const setters = {};
let kept = null;
let shown = null; // what is on the screen: its wish, price and curves
let latest = 0;

// Bounds are rounded away from the truth: the upper one never down.
function rounded(value, digits, way, slack) {
  if (!Number.isFinite(value) || value <= 0) return String(value);
  const unit = 10 ** (Math.floor(Math.log10(value)) - digits + 1);
  return String(Number((way(value / unit + slack) * unit).toPrecision(digits)));
}
const roundedUp = (value, digits = 4) => rounded(value, digits, Math.ceil, -1e-9);
const roundedDown = (value, digits = 4) => rounded(value, digits, Math.floor, 1e-9);

function addSlider(place, [name, label, least, most, start, whole], values, prefix, moved) {
  const row = document.createElement("div");
  row.className = "slider";
  row.id = `row-${prefix}${name}`;
  const caption = document.createElement("label");
  caption.htmlFor = `value-${prefix}${name}`;
  const word = document.createElement("span");
  word.textContent = label;
  word.className = "word";
  word.title = WORDS[name];
  const value = document.createElement("input");
  Object.assign(value, { type: "text", id: `value-${prefix}${name}`, inputMode: "decimal", autocomplete: "off" });
  caption.append(word, value);
  const range = document.createElement("input");
  Object.assign(range, { type: "range", min: 0, max: STEPS, step: 1, id: `slider-${prefix}${name}`, title: WORDS[name] });
  range.setAttribute("aria-label", label);
  const shift = least > 0 ? 0 : 1; // zero is on the scale of whole numbers
  const position = (number) => (Math.log((number + shift) / (least + shift)) / Math.log((most + shift) / (least + shift))) * STEPS;
  const numberAt = (place) => {
    const number = Number(((least + shift) * ((most + shift) / (least + shift)) ** (place / STEPS) - shift).toPrecision(3));
    return whole ? Math.round(number) : number;
  };
  const set = (number, text = plain(number)) => {
    value.value = text;
    range.value = position(number);
    range.setAttribute("aria-valuetext", short(number));
  };
  setters[prefix + name] = set;
  range.addEventListener("input", () => { values[name] = numberAt(Number(range.value)); set(values[name]); moved(); });
  value.addEventListener("change", () => { values[name] = Number(value.value); range.value = position(values[name]); moved(); });
  row.append(caption, range);
  place.append(row);
  values[name] = start;
  set(start);
}

// The token stands behind the # of the address, which browsers do not send; it is kept for this tab and hidden.
const TOKEN = "discreet-token";
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem(TOKEN, location.hash.slice(7));
  history.replaceState(null, "", location.pathname);
}
const known = { "X-Discreet-Token": sessionStorage.getItem(TOKEN) ?? "" };

// A refusal is an answer too: it comes back as {error}, so that the browser's console stays empty.
async function ask(path, body) {
  const headers = { "Content-Type": "application/json", ...known };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const data = await answer.json();
  if (data.error) throw new Error(data.error);
  return data;
}

function say(id, text) {
  byId(id).textContent = text;
  byId(id).hidden = !text;
}

function show(prefix, answer) {
  const { lower, upper } = answer.epsilon;
  byId(`${prefix}epsilon`).textContent = `ε ≤ ${roundedUp(upper)}`;
  byId(`${prefix}bounds`).textContent = `certified: between ${roundedDown(lower, 5)} and ${roundedUp(upper, 5)} at delta ${short(answer.delta)}`;
  const numbers = [
    ["steps", short(answer.steps), "The number of noisy sums that are released."],
    ["sampling rate", short(answer.rate), "The probability that a record is in a step."],
    ["noise multiplier", short(answer.noise_multiplier), WORDS.noise_multiplier],
    ["noise per coordinate of the mean", short(answer.noise_per_coordinate), "Standard deviation of the noise on the averaged gradient."],
    ["signal to noise, whole run", short(answer.signal_to_noise), "The signal of the gradient relative to the noise, over all steps; higher is better."],
  ];
  byId(`${prefix}numbers`).replaceChildren(...numbers.flatMap(([name, value, why]) => {
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    Object.assign(term, { textContent: name, title: why, className: "word" });
    text.textContent = value;
    return [term, text];
  }));
}

// Of a plan that is refused nothing stays on the screen but the reason.
function clear(reason) {
  shown = null;
  byId("epsilon").textContent = "–";
  byId("bounds").textContent = "";
  byId("numbers").replaceChildren();
  byId("charts").hidden = true;
  say("fits", "");
  say("problem", reason);
}

// While a slider moves only the newest position is asked for: one question at a time, the last one always answered.
let busy = false;
let waiting = false;
function changed() {
  latest += 1;
  byId("row-noise_multiplier").classList.toggle("follows", wish.fixed === "epsilon");
  byId("row-epsilon").classList.toggle("follows", wish.fixed === "noise");
  say("exported", "");
  byId("download").hidden = true;
  byId("copied").textContent = "";
  byId("answer").classList.add("computing");
  if (busy) { waiting = true; return; }
  refresh();
}
async function refresh() {
  busy = true;
  waiting = false;
  const asked = latest;
  const now = { ...wish };
  const start = performance.now();
  try {
    const price = await ask("/api/price", now);
    show("", price);
    follow(price);
    say("problem", "");
    byId("latency").textContent = String(Math.round(performance.now() - start));
    document.body.dataset.answered = String(asked);
    shown = { wish: now, price };
    if (!waiting) {
      shown.curves = await ask("/api/curves", now);
      drawCurves();
      document.body.dataset.drawn = String(asked);
      await tellWhetherItFits(now);
    }
  } catch (error) {
    clear(error.message);
    document.body.dataset.refused = String(asked);
  }
  busy = false;
  if (waiting) refresh();
  else byId("answer").classList.remove("computing");
}
function follow(answer) {
  const [name, value] = wish.fixed === "epsilon" ? ["noise_multiplier", answer.noise_multiplier] : ["epsilon", answer.epsilon.upper];
  setters[name](value, roundedUp(value));
}
async function tellWhetherItFits(now) {
  if (byId("ledger").hidden) return;
  const { fits, why } = await ask("/api/fits", now);
  if (fits !== null) say("fits", fits ? "✓ fits into the ledger" : `✗ does not fit into the ledger: ${why}`);
  byId("fits").className = fits ? "good" : "bad";
}

function drawCurves() {
  const { curves, price } = shown;
  const other = kept?.curves;
  byId("charts").hidden = false;
  const both = (part, x, y, label, style = "--main") => [
    { label, x: curves[part][x], y: curves[part][y], style },
    ...(other ? [{ label: `${label}, kept`, x: other[part][x], y: other[part][y], style: "--second", dashed: true }] : []),
  ];
  const here = (x, y, word = "you are here", style = "--main") => ({ x, y, word, style });
  const points = (x, y, keptX, keptY) => [here(x, y), ...(other ? [here(keptX, keptY, "kept", "--second")] : [])];
  const guess = { label: "guessing", x: curves.attack.alarms, y: curves.attack.alarms, style: "--soft", dashed: true };
  draw("chart-attack", [...both("attack", "alarms", "hits", "best attack"), guess], { x: "false alarms", y: "records found" }, points(curves.alarms, curves.hits, other?.alarms, other?.hits));
  byId("attack-words").textContent = `At a false positive rate of ${100 * curves.alarms} %, the best attack identifies at most ${roundedUp(100 * curves.hits, 3)} % of the records that were used.`;
  const keptPrice = kept?.price;
  draw("chart-steps", both("steps", "steps", "epsilon", "epsilon"), { x: "steps", y: "epsilon" }, points(price.steps, price.epsilon.upper, keptPrice?.steps, keptPrice?.epsilon.upper));
  draw("chart-frontier", both("frontier", "epsilon", "noise", "noise multiplier"), { x: "epsilon", y: "noise multiplier", logX: true, logY: true }, points(price.epsilon.upper, price.noise_multiplier, keptPrice?.epsilon.upper, keptPrice?.noise_multiplier));
  const { clip } = curves;
  const line = (label, y, style) => ({ label, x: clip.clip, y, style });
  const best = clip.clip.findIndex((value) => Math.abs(value / clip.best - 1) < 1e-6);
  draw("chart-clip", [line("error, at most", clip.error, "--main"), line("bias", clip.bias, "--second"), line("noise", clip.noise, "--soft")], { x: "clip norm / typical record", y: "error", logX: true, logY: true }, [here(clip.best, clip.error[best], "best")]);
  byId("clip-words").textContent = `Best clip norm for this budget: ${short(clip.best)} times the root mean square of the records.`;
}

byId("keep").addEventListener("click", () => {
  if (!shown?.curves) return;
  kept = shown;
  show("kept-", kept.price);
  byId("card-kept").hidden = false;
  drawCurves();
});
byId("forget").addEventListener("click", () => { kept = null; byId("card-kept").hidden = true; if (shown?.curves) drawCurves(); });
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    if (!shown) { byId("copied").textContent = "There is no plan on the screen to copy."; return; }
    const text = (await ask("/api/export", shown.wish))[button.dataset.copy];
    say("exported", text);
    const link = byId("download");
    link.hidden = button.dataset.copy !== "plan";
    if (!link.hidden) link.href = `data:application/json,${encodeURIComponent(text)}`;
    const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    byId("copied").textContent = done ? "Copied: the plan on the screen." : "Your browser does not allow this page to copy. Select the text below.";
  });
}
for (const choice of byId("wish").querySelectorAll("select, input[type=radio]")) {
  choice.addEventListener("change", () => { wish[choice.name] = choice.value; changed(); });
}

// ---- the other tabs: ask when something moved, one question at a time ----

function asker(path, values, problemId, place, tell) {
  let asking = false;
  let again = false;
  return async function moved() {
    if (asking) { again = true; return; }
    asking = true;
    byId(place).classList.add("computing");
    do {
      again = false;
      try {
        tell(await ask(path, values));
        say(problemId, "");
        byId(place).hidden = false;
      } catch (error) { byId(place).hidden = true; say(problemId, error.message); }
    } while (again);
    asking = false;
    byId(place).classList.remove("computing");
    document.body.dataset[place.replace("-", "")] = "answered";
  };
}
function cells(kind, texts) {
  return texts.map((text, index) => {
    const cell = document.createElement(kind === "head" || index === 0 ? "th" : "td");
    if (cell.tagName === "TH") cell.scope = kind === "head" ? "col" : "row";
    cell.textContent = text;
    return cell;
  });
}
function rowOf(kind, texts) {
  const row = document.createElement("tr");
  row.append(...cells(kind, texts));
  return row;
}
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const askTables = asker("/api/tables", table, "tables-problem", "table-charts", (answer) => {
  const flat = answer.epsilon.map(() => answer.without);
  const lines = [{ label: "at least", x: answer.epsilon, y: answer.low, style: "--main" }, { label: "at most", x: answer.epsilon, y: answer.high, style: "--second" }, { label: "without privacy", x: answer.epsilon, y: flat, style: "--soft", dashed: true }];
  const at = answer.epsilon.indexOf(1);
  draw("chart-tables", lines, { x: "epsilon", y: "accuracy", logX: true, low: 0.5, high: 1 }, [{ x: 1, y: answer.low[at], word: "epsilon 1", style: "--main" }]);
  byId("tables-words").textContent = `At epsilon 1 expect ${percent(answer.low[at])} to ${percent(answer.high[at])}, without privacy ${percent(answer.without)}.`;
  byId("grid").tHead.replaceChildren(rowOf("head", ["columns", ...answer.records.map(short)]));
  byId("grid").tBodies[0].replaceChildren(...answer.columns.map((columns, index) => rowOf("body", [short(columns), ...answer.grid[index].map(percent)])));
});
const askParties = asker("/api/parties", parties, "parties-problem", "observers", (answer) => {
  byId("parties-noise").textContent = `Noise multiplier ${short(answer.noise_multiplier)}: the least noise that gives this epsilon against the coordinator.`;
  byId("observers").tBodies[0].replaceChildren(...answer.observers.map((row) => rowOf("body", [row.observer, row.epsilon, row.note ? `${row.sees} (${row.note})` : row.sees])));
});
byId("aggregation").addEventListener("change", (event) => { parties.aggregation = event.target.value; askParties(); });

const tabs = [...document.querySelectorAll("[role=tab]")];
function open(tab) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", String(chosen));
    one.tabIndex = chosen ? 0 : -1;
    byId(one.getAttribute("aria-controls")).hidden = !chosen;
  }
  ({ "tab-run": () => { if (shown?.curves) drawCurves(); }, "tab-tables": askTables, "tab-parties": askParties })[tab.id]();
}
for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { const next = tabs[(index + step + tabs.length) % tabs.length]; next.focus(); open(next); }
  });
}

async function showLedger() {
  const { ledger } = await (await fetch("/api/ledger", { headers: known })).json();
  if (!ledger) return;
  byId("ledger").hidden = false;
  byId("bar-spent").setAttribute("width", String(100 * ledger.spent));
  byId("bar").setAttribute("aria-label", `${percent(ledger.spent)} of the budget is spent`);
  byId("ledger-promise").textContent = `${percent(ledger.spent)} spent, ${percent(1 - ledger.spent)} left. Budget: epsilon ${ledger.epsilon}, delta ${ledger.delta} (${ledger.kind}, ${ledger.neighbours}). Promised: ${ledger.promise}.`;
  byId("ledger-data").textContent = ledger.data.map(({ data, releases }) => `data set ${data}: ${short(releases)} releases`).join(" · ");
  byId("ledger").querySelector("tbody").replaceChildren(...ledger.runs.map((run) => rowOf("body", [run.name, run.plan, short(run.taken), short(run.planned)])));
}

SLIDERS.forEach((slider) => addSlider(byId("sliders"), slider, wish, "", changed));
PRIVACY.forEach((slider) => addSlider(byId("privacy"), slider, wish, "", changed));
TABLE.forEach((slider) => addSlider(byId("table-sliders"), slider, table, "table-", askTables));
PARTIES.forEach((slider) => addSlider(byId("parties-sliders"), slider, parties, "parties-", askParties));
let pause = null;
window.addEventListener("resize", () => { clearTimeout(pause); pause = setTimeout(() => open(tabs.find((tab) => tab.getAttribute("aria-selected") === "true")), 200); });
for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
showLedger().then(changed);
