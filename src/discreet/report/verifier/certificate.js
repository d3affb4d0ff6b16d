// Reading and recomputing a certificate. The verdict has the same three outcomes as `discreet verify`: accepted (0),
// rejected (1) and consistent (3). Every line names its evidence: computed here, signed, claimed, or not at hand.

const COMPUTED = "computed", SIGNED = "signed", CLAIMED = "claimed", MISSING = "not at hand";
const AGREE = 1e-8; // relative: rounding that may differ between the two implementations
const SLACK = 0.002; // relative: how much larger the epsilon that this page proves may be than the certificate's

class Rejected extends Error {}

const insist = (condition, otherwise) => {
  if (!condition) throw new Rejected(`The certificate is rejected: ${otherwise}.`);
};

// Typed reading: every reader takes plain data and returns what it means, or refuses.
const refuse = (what) => {
  throw new Refused(`The certificate is damaged or altered: ${what}.`);
};
const text = (value) => (typeof value === "string" ? value : refuse("a text is missing"));
const list = (value) => (Array.isArray(value) ? value : refuse("a list is missing"));
const float = (value) =>
  typeof value === "number" ? value : typeof value === "bigint" ? Number(value) : refuse("a number is missing");
const atLeast = (limit) => (value) => (float(value) >= limit ? float(value) : refuse(`a number is below ${limit}`));
const whole = (least) => (value) =>
  typeof value === "bigint" && value >= BigInt(least) && value <= 10n ** 15n ? value : refuse("a count is missing");
const hex = (size) => (value) =>
  new RegExp(`^[0-9a-f]{${2 * size}}$`).test(text(value)) ? value : refuse("a digest or key is missing");
const among = (...words) => (value) => (words.includes(value) ? value : refuse(`${String(value)} is unknown`));
const optional = (read, fallback) => Object.assign((value) => read(value), { fallback });

// Read exactly these fields of an object; a field that is not named is refused.
function fields(data, readers) {
  if (!(data instanceof Map)) refuse("an object is missing");
  const found = {};
  for (const [name, read] of Object.entries(readers)) {
    if (data.has(name)) found[name] = read(data.get(name));
    else if ("fallback" in read) found[name] = read.fallback;
    else refuse(`${name} is missing`);
  }
  for (const name of data.keys()) if (!(name in readers)) refuse(`${name} is unknown`);
  return found;
}

const NEIGHBOURS = among("add-remove", "replace-one");
const UNIT = optional(among("record", "person"), "record");
const mapOf = (pairs) => new Map(pairs.filter(([, value]) => value !== undefined));
const unitPair = (unit) => ["unit", unit === "record" ? undefined : unit];

function readBudget(data) {
  const budget = fields(data, {
    epsilon: atLeast(0), delta: atLeast(0), neighbours: NEIGHBOURS, group_size: whole(1), unit: UNIT,
  });
  if (!(budget.epsilon > 0 && budget.delta < 1)) refuse("a budget has no meaning");
  const { epsilon, delta, neighbours, group_size, unit } = budget;
  const data2 = [["epsilon", epsilon], ["delta", delta], ["neighbours", neighbours], ["group_size", group_size]];
  return { ...budget, data: mapOf([...data2, unitPair(unit)]) };
}

function readGuarantee(data) {
  const found = fields(data, {
    epsilon: (value) => list(value).map(atLeast(0)), delta: atLeast(0), neighbours: NEIGHBOURS,
    group_size: whole(1), observer: text, unit: UNIT,
  });
  if (found.epsilon.length !== 2 || found.delta >= 1) refuse("a guarantee has no meaning");
  const { epsilon, delta, neighbours, group_size, observer, unit } = found;
  const pairs = [["epsilon", epsilon], ["delta", delta], ["neighbours", neighbours], ["group_size", group_size]];
  return { ...found, data: mapOf([...pairs, ["observer", observer], unitPair(unit)]) };
}

// Events: `parts` are simple events with their counts, as the ledger charges them.
const EVENTS = {
  gaussian: (data) => {
    const { noise_multiplier: noise } = fields(data, { event: text, noise_multiplier: atLeast(0) });
    return { kind: "gaussian", noise, data: new Map([["event", "gaussian"], ["noise_multiplier", noise]]) };
  },
  laplace: (data) => {
    const { scale } = fields(data, { event: text, scale: atLeast(0) });
    return { kind: "laplace", scale, data: new Map([["event", "laplace"], ["scale", scale]]) };
  },
  "approximate-dp": (data) => {
    const { epsilon, delta } = fields(data, { event: text, epsilon: atLeast(0), delta: optional(atLeast(0), 0.0) });
    return approximate(epsilon, delta);
  },
  "poisson-sampled": (data) => {
    const { rate, of } = fields(data, { event: text, rate: atLeast(0), of: readEvent });
    if (rate > 1) refuse("a rate is above 1");
    return sampled(rate, of);
  },
};

const approximate = (epsilon, delta) => ({
  kind: "approximate-dp", epsilon, delta,
  data: new Map([["event", "approximate-dp"], ["epsilon", epsilon], ["delta", delta]]),
});
const sampled = (rate, of) => ({
  kind: "poisson-sampled", rate, of,
  data: new Map([["event", "poisson-sampled"], ["rate", rate], ["of", of.data]]),
});

function readEvent(data) {
  if (!(data instanceof Map)) refuse("an event is missing");
  const kind = text(data.get("event"));
  if (kind === "composition") {
    const { events } = fields(data, { event: text, events: list });
    return compose(events.map((pair) => (list(pair).length === 2 ? [readEvent(pair[0]), whole(1)(pair[1])] : refuse("an event has no count"))));
  }
  if (!KINDS.includes(kind)) refuse(`${kind} is not an event`);
  return EVENTS[kind] ? EVENTS[kind](data) : { kind, data };
}

function partsOf(event) {
  if (event.kind === "composition") return event.events;
  if (event.kind === "poisson-sampled" && event.rate === 0) return [[approximate(0.0, 0.0), 1n]];
  if (event.kind === "poisson-sampled" && event.rate === 1) return [[event.of, 1n]];
  return [[event, 1n]];
}

function compose(pairs) {
  const merged = new Map();
  for (const [event, count] of pairs) {
    for (const [part, times] of partsOf(event)) {
      const key = canonical(part.data), before = merged.get(key);
      merged.set(key, [part, times * count + (before ? before[1] : 0n)]);
    }
  }
  if (merged.size === 0) refuse("a composition is empty");
  const events = [...merged.values()];
  const data = new Map([["event", "composition"], ["events", events.map(([part, count]) => [part.data, count])]]);
  return { kind: "composition", events, data };
}

const sameParts = (left, right) => {
  const texts = [left, right].map((event) => canonical(partsOf(event).map(([part, count]) => [part.data, count])));
  return texts[0] === texts[1];
};

// Rules of spending: fixed plans and Gaussian filters. Others are read, and not recomputed here.
function readRule(data) {
  if (!(data instanceof Map)) refuse("a rule is missing");
  const kind = text(data.get("rule"));
  if (kind === "fixed-plan") {
    const { event, budget } = fields(data, { rule: text, event: readEvent, budget: readBudget });
    return { kind, event, budget, spare: 0, data: new Map([["rule", kind], ["event", event.data], ["budget", budget.data]]) };
  }
  if (kind === "gaussian-filter" || kind === "gaussian-filter-2") {
    const { budget, spare } = fields(data, { rule: text, budget: readBudget, ...(kind.endsWith("2") ? { spare: atLeast(0) } : {}) });
    const pairs = [["rule", kind], ["spare", spare], ["budget", budget.data]];
    return { kind: "gaussian-filter", budget, spare: spare ?? 0, data: mapOf(pairs) };
  }
  if (!kind.startsWith("truncated-renyi-filter")) refuse(`${kind} is not a rule`);
  return { kind, budget: readBudget(data.get("budget")), spare: 0, data };
}

// Stages of a fixed plan, and the events that they charge.
function readStage(data) {
  const stage = fields(data, {
    name: text, sampling: among("poisson", "fixed-size", "random-allocation", "full-batch"), records: whole(1), batch_size: whole(1), steps: whole(1),
    clip_norm: atLeast(0), noise_multiplier: atLeast(0), bands: optional(whole(1), 1n),
  });
  const pairs = Object.entries(stage).filter(([name, value]) => name !== "bands" || value > 1n);
  return { ...stage, data: new Map(pairs) };
}

function eventOfStage(stage) {
  const gaussian = EVENTS.gaussian(new Map([["event", "gaussian"], ["noise_multiplier", stage.noise_multiplier]]));
  if (stage.bands > 1n) throw new Unsupported("this page has no theorem for correlated noise");
  if (stage.sampling === "full-batch") return [gaussian, stage.steps];
  if (stage.sampling === "poisson") {
    return [sampled(Number(stage.batch_size) / Number(stage.records), gaussian), stage.steps];
  }
  throw new Unsupported(`this page has no theorem for ${stage.sampling} batches`);
}

async function readPlan(data) {
  if (!(data instanceof Map)) refuse("a plan is missing");
  const format = data.get("format");
  if (format === "discreet procedure 1") {
    const { name, settings, rule } = fields(data, { format: text, name: text, settings: (value) => value, rule: readRule });
    if (!(settings instanceof Map)) refuse("settings are missing");
    const plan = new Map([["format", format], ["name", name], ["settings", settings], ["rule", rule.data]]);
    return { data: plan, digest: await digestOf(plan), stages: [], rule, settings };
  }
  if (format !== "discreet plan 1") refuse("its plan has another format");
  const plan = fields(data, {
    format: text, stages: (value) => list(value).map(readStage), delta: atLeast(0), neighbours: NEIGHBOURS,
    group_size: whole(1), unit: UNIT,
  });
  if (plan.stages.length === 0) refuse("its plan has no stages");
  const { stages, delta, neighbours, group_size, unit } = plan;
  const pairs = [["format", format], ["stages", stages.map((stage) => stage.data)], ["delta", delta]];
  const map = mapOf([...pairs, ["neighbours", neighbours], ["group_size", group_size], unitPair(unit)]);
  return { data: map, digest: await digestOf(map), stages, settings: new Map(), wish: { delta, neighbours, group_size, unit } };
}

const readRun = (data) => {
  const run = fields(data, {
    name: text, plan_hash: hex(32), event: readEvent, taken: (value) => list(value).map(whole(0)),
    distance: optional(atLeast(0), 0.0),
  });
  const parts = partsOf(run.event);
  if (run.taken.length !== parts.length || run.taken.some((taken, i) => taken > parts[i][1])) refuse("a run took more than its plan");
  const pairs = [["name", run.name], ["plan_hash", run.plan_hash], ["event", run.event.data], ["taken", run.taken]];
  return { ...run, data: mapOf([...pairs, ["distance", run.distance || undefined]]) };
};

async function readCertificate(document) {
  if (!(document instanceof Map)) refuse("it is not a certificate");
  const claimed = document.get("digest"), content = new Map(document);
  content.delete("digest");
  const pairs = (value) => {
    if (!(value instanceof Map)) refuse("an object is missing");
    value.forEach(text);
    return value;
  };
  const found = fields(content, {
    format: text, guarantee: readGuarantee, together: readGuarantee, not_covered: (value) => list(value).map(text),
    arithmetic: (value) => fields(value, { kind: among("float", "hardened"), distance: atLeast(0) }),
    randomness: among("operating system", "seed"), procedure: (value) => value,
    ledger: (value) => fields(value, {
      rule: readRule, runs: (runs) => list(runs).map(readRun),
      anchor: (anchor) => fields(anchor, { sequence: whole(0), hash: hex(32) }),
    }),
    versions: pairs,
    signatures: (value) => list(value).map((one) => fields(one, { public_key: hex(32), signature: hex(64) })),
    files: optional(pairs, null), checks: optional((value) => list(value).map(text), null),
  });
  const plan = await readPlan(found.procedure), { ledger, arithmetic } = found;
  if ((arithmetic.kind === "float") !== (arithmetic.distance === 0)) refuse("its arithmetic has no meaning");
  if (found.files) for (const digest of found.files.values()) hex(32)(digest);
  if (new Set(ledger.runs.map((run) => run.name)).size < ledger.runs.length) refuse("two runs have one name");
  const format = found.files || found.checks ? "discreet certificate 2" : "discreet certificate 1";
  if (found.format !== format) refuse("it has another format");
  const anchor = new Map([["sequence", ledger.anchor.sequence], ["hash", ledger.anchor.hash]]);
  const written = mapOf([
    ["format", format], ["guarantee", found.guarantee.data], ["together", found.together.data],
    ["not_covered", found.not_covered],
    ["arithmetic", new Map([["kind", arithmetic.kind], ["distance", arithmetic.distance]])],
    ["randomness", found.randomness], ["procedure", plan.data],
    ["ledger", new Map([["rule", ledger.rule.data], ["runs", ledger.runs.map((run) => run.data)], ["anchor", anchor]])],
    ["versions", found.versions], ["files", found.files ?? undefined], ["checks", found.checks ?? undefined],
  ]);
  const digest = await digestOf(written);
  if (digest !== claimed) refuse("its digest does not match");
  return { ...found, plan, digest };
}

// Recomputing.
const spentBy = (runs) => {
  const pairs = runs.flatMap((run) => partsOf(run.event).map(([part], i) => [part, run.taken[i]])).filter(([, n]) => n > 0n);
  return pairs.length ? compose(pairs).events : [];
};
const counted = (parts) => parts.map(([event, count]) => [event, Number(count)]);
const costOfDistance = (epsilon) => (1 + Math.exp(Math.min(epsilon, 700))) * (1 + 1e-14);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// The guarantee that follows from a rule, what was spent under it, and the distance of noise in integers.
function follows(rule, spent, distance, claimed) {
  const { budget } = rule, group = Number(budget.group_size);
  if (rule.kind === "gaussian-filter") {
    if (spent.some(([event]) => event.kind !== "gaussian")) throw new Rejected("The certificate is rejected: its rule holds only Gaussian releases.");
    const accounted = budget.delta * (1 - rule.spare), parts = counted(spent);
    let lower = 0;
    if (parts.length) {
      const factor = group * (budget.neighbours === "replace-one" ? 2 : 1);
      const mu = Math.sqrt(sum(parts.map(([event, count]) => count * (factor / event.noise) ** 2)));
      insist(gaussianDelta(budget.epsilon, mu)[1] <= accounted * (1 + AGREE), "the ledger shows more than its rule allows");
      lower = Math.min(budget.epsilon, epsilonOf(parts, budget.neighbours, group, budget.delta)[0]);
    }
    const held = ((budget.delta - accounted) * (1 - 1e-9)) / costOfDistance(budget.epsilon);
    const old = claimed.delta > budget.delta, base = old ? budget.delta : accounted;
    const within = !old && rule.spare > 0 && distance <= held;
    const delta = within || distance === 0 ? budget.delta : base + costOfDistance(budget.epsilon) * distance;
    return { lower, upper: budget.epsilon, delta };
  }
  if (rule.kind !== "fixed-plan") throw new Unsupported(`this page has no theorem for the rule ${rule.kind}`);
  const planned = new Map(partsOf(rule.event).map(([part, count]) => [canonical(part.data), count]));
  for (const [part, count] of spent) {
    insist((planned.get(canonical(part.data)) ?? 0n) >= count, "the ledger shows more than its rule allows");
  }
  const at = (delta) => epsilonOf(counted(partsOf(rule.event)), budget.neighbours, group, delta);
  if (distance === 0 || budget.delta === 0) {
    const [lower, upper] = at(budget.delta);
    return { lower, upper, delta: budget.delta };
  }
  const cost = costOfDistance(claimed.epsilon[1]) * distance, inside = claimed.delta <= budget.delta;
  const left = inside ? budget.delta - cost : budget.delta;
  insist(left > 0, "the distance of its noise exceeds delta");
  const [lower, upper] = at(left);
  return { lower, upper, delta: inside ? budget.delta : budget.delta + cost };
}

function ruleOf(plan) {
  if (plan.rule) return plan.rule;
  const event = compose(plan.stages.map(eventOfStage));
  return { kind: "fixed-plan", event, spare: 0, budget: { epsilon: Infinity, ...plan.wish } };
}

const shown = (number) => String(Number(number.toPrecision(6)));

// Both speak of the same neighbours, group and unit; otherwise their numbers cannot be compared.
function insistOnMeaning(name, claimed, { budget }) {
  for (const field of ["neighbours", "group_size", "unit"]) {
    insist(claimed[field] === budget[field], `${name} says ${field}=${claimed[field]}, and what follows is ${budget[field]}`);
  }
  insist(claimed.observer === "sees every release", `${name} names another observer`);
}

function compare(name, claimed, { budget }, proved) {
  const [lower, upper] = claimed.epsilon;
  insist(lower <= upper, `${name} has a lower bound above its upper bound`);
  insist(upper >= proved.upper / (1 + SLACK), `${name} says epsilon ${upper}, and what follows is ${shown(proved.upper)}`);
  insist(lower <= (proved.lower ?? proved.upper) * (1 + AGREE), `${name} says a lower bound of ${lower}, and what follows is ${shown(proved.lower ?? proved.upper)}`);
  insist(claimed.delta >= proved.delta * (1 - AGREE), `${name} says delta ${claimed.delta}, and what follows is ${proved.delta}`);
  insist(proved.upper <= budget.epsilon * (1 + SLACK), "the guarantee exceeds the budget of its rule");
}

const sentence = (claimed, proved) => {
  const units = claimed.unit === "person" ? "person with all of their rows" : "record";
  const size = claimed.group_size > 1n ? `any ${claimed.group_size} ${units}s` : `one ${units}`;
  return `(${shown(Math.max(proved.upper, claimed.epsilon[1]))}, ${floatText(claimed.delta)})-differentially private for ${size}, ${claimed.neighbours} neighbours, against an observer who ${claimed.observer}`;
};

async function validSignature({ public_key: key, signature }, kind, digest) {
  const imported = await crypto.subtle.importKey("raw", bytesOfHex(key), { name: "Ed25519" }, false, ["verify"]);
  return crypto.subtle.verify({ name: "Ed25519" }, imported, bytesOfHex(signature), bytesOf(`discreet ${kind}\0${digest}`));
}

async function insistOnSignature(signature, kind, digest, what) {
  let valid;
  try {
    valid = await validSignature(signature, kind, digest);
  } catch (error) {
    throw new Unsupported(`this browser cannot check Ed25519 signatures (${error.name})`);
  }
  insist(valid, `the signature of ${signature.public_key.slice(0, 12)} is not of this ${what}`);
}

// All lines of the verdict on a certificate. `behind` is what vouches for the whole text from outside.
async function certificateLines(certificate, { trustedKey, files, behind }) {
  const lines = [], { plan, ledger } = certificate;
  const say = (basis, sentences) => lines.push([basis, sentences]);
  const keys = [];
  const signatureLines = [];
  for (const signature of certificate.signatures) {
    await insistOnSignature(signature, "certificate", certificate.digest, "certificate");
    keys.push(signature.public_key);
    if (signature.public_key === trustedKey) signatureLines.push([SIGNED, `signed by ${trustedKey}, which you trust`]);
    else signatureLines.push([COMPUTED, `signed by ${signature.public_key}; to rely on it, give this key yourself`]);
  }
  if (trustedKey && !behind) insist(keys.includes(trustedKey), `it is not signed by ${trustedKey}`);
  const basis = behind || (trustedKey && keys.includes(trustedKey)) ? SIGNED : CLAIMED;

  const own = ledger.runs.filter((run) => run.plan_hash === plan.digest);
  insist(own.length > 0, "the ledger knows no run of this procedure");
  const continued = plan.settings.get("continues");
  const plans = new Set([plan.digest, ...(Array.isArray(continued) ? continued.map(hex(32)) : [])]);
  for (const digest of plans) insist(ledger.runs.some((run) => run.plan_hash === digest), "the ledger knows no run of a procedure that it continues");
  say(basis, `procedure ${plan.digest.slice(0, 12)}: ${sum(own.flatMap((run) => run.taken.map(Number)))} events charged, as its rule allows`);
  const ours = ledger.runs.filter((run) => plans.has(run.plan_hash));
  const others = ledger.runs.filter((run) => !plans.has(run.plan_hash));
  const distance = Math.max(certificate.arithmetic.distance, sum(ours.map((run) => run.distance)));
  const all = Math.min(1, distance + sum(others.map((run) => run.distance)));
  try {
    if (plan.stages.length) {
      const planned = compose(plan.stages.map(eventOfStage));
      insist(own.every((run) => sameParts(run.event, planned)), "a run's event is not that of the plan");
    }
    const rule = ruleOf(plan);
    insistOnMeaning("guarantee", certificate.guarantee, rule);
    insistOnMeaning("together", certificate.together, ledger.rule);
    const proved = follows(rule, spentBy(ours), distance, certificate.guarantee);
    compare("guarantee", certificate.guarantee, rule, proved);
    say(COMPUTED, `guarantee from these events: ${sentence(certificate.guarantee, proved)}`);
    const together = follows(ledger.rule, spentBy(ledger.runs), all, certificate.together);
    compare("together", certificate.together, ledger.rule, together);
    if (canonical(certificate.together.data) !== canonical(certificate.guarantee.data)) {
      say(COMPUTED, `all runs of this ledger together: ${sentence(certificate.together, together)}`);
    }
  } catch (error) {
    if (!(error instanceof Unsupported)) throw error;
    say(CLAIMED, `the guarantee: ${error.message}; run discreet verify`);
  }
  insist(certificate.randomness !== "seed", "a seed made the noise, so nothing is private: no guarantee");
  const missing = NOT_COVERED.filter((one) => !certificate.not_covered.includes(one));
  insist(missing.length === 0, "it hides something that is not covered");
  const least = 1 + ledger.runs.length + ledger.runs.filter((run) => run.taken.some((n) => n > 0n)).length;
  insist(Number(ledger.anchor.sequence) + 1 >= least, "a ledger of so few entries cannot say so much");
  say(basis, "noise from the operating system's entropy");
  say(basis, certificate.arithmetic.kind === "hardened" ? "hardened sums: proved for the bits that were released" : "float sums: proved for real numbers");
  say(basis, `not covered: ${certificate.not_covered.length} things, listed in the certificate, and no others`);
  if (certificate.checks) say(basis, `${certificate.checks.length} checks were made on the way, listed in the certificate`);
  say(basis, `made with ${[...certificate.versions].map(([name, version]) => `${name} ${version}`).join(", ")}`);
  lines.push(...signatureLines);
  say(MISSING, `the ledger, whose head should be ${ledger.anchor.sequence}, ${ledger.anchor.hash.slice(0, 12)}: only discreet verify --ledger compares it`);
  if (!certificate.files) {
    say(files.size ? CLAIMED : MISSING, "which weights it is for: it holds no digest of any file");
  } else {
    say(basis, `it is for the files ${[...certificate.files.keys()].join(", ")}`);
    for (const [name, expected] of certificate.files) {
      if (!files.has(name)) say(MISSING, `the file ${name}: drop it here to compare it`);
      else {
        insist(files.get(name) === expected, `${name} is not the file that the certificate is for`);
        say(COMPUTED, `${name} is the file that it names`);
      }
    }
  }
  return lines;
}

// Pages of reports carry the certificate and their signatures.
// The markers are put together, so that a page which embeds this script does not seem to hold them twice.
const marker = (name) => `<scr${"ipt"} type="application/json" id="discreet-${name}">`;
const OPEN = marker("report"), OPEN_SIGNATURES = marker("signatures");
const CLOSE = `</scr${"ipt"}>`, END = "\n</body>\n</html>";
const PARTS = [
  ["evaluation", "the evaluation: how good the model is, and what measuring it cost"],
  ["model", "the model: effects and curves"],
  ["notes", "the notes on the table"],
  ["observers", "the observers: who can learn what"],
  ["risks", "the chances of attackers without the results; the bounds with them follow from these"],
  ["audit", "the audit"],
];

function splitPage(source) {
  const page = source.trim();
  if (!page.endsWith(END)) return [page, []];
  const body = page.slice(0, -END.length), cut = body.lastIndexOf("\n"), last = body.slice(cut + 1);
  if (!(last.startsWith(OPEN_SIGNATURES) && last.endsWith(CLOSE))) return [page, []];
  const signatures = parseJson(last.slice(OPEN_SIGNATURES.length, -CLOSE.length));
  const read = list(signatures).map((one) => fields(one, { public_key: hex(32), signature: hex(64) }));
  return [body.slice(0, cut) + END, read];
}

function carriedBy(page) {
  const pieces = page.split(OPEN);
  if (pieces.length !== 2) throw new Refused("The page carries no whole report of Discreet.");
  const carried = parseJson(pieces[1].slice(0, pieces[1].indexOf(CLOSE)));
  if (!(carried instanceof Map) || carried.get("format") !== "discreet report 2") throw new Refused("The page carries a report of another format.");
  return carried;
}

async function pageLines(source, options) {
  const [unsigned, signatures] = splitPage(source), carried = carriedBy(unsigned);
  const digest = await sha256(bytesOf(unsigned));
  for (const signature of signatures) await insistOnSignature(signature, "report", digest, "page");
  const behind = signatures.some((signature) => signature.public_key === options.trustedKey);
  const certificate = await readCertificate(carried.get("certificate"));
  const lines = await certificateLines(certificate, { ...options, behind });
  if (behind) lines.push([SIGNED, `the page as a whole, every word of it; its SHA-256 without signatures is ${digest}`]);
  else {
    lines.push([CLAIMED, "the words of the page: only discreet verify writes them anew and compares; believe the numbers here"]);
    for (const [name, words] of PARTS) {
      const part = carried.get(name);
      if (part && part.length !== 0) lines.push([CLAIMED, words]);
    }
  }
  return { certificate, lines };
}

// The verdict on a file: { outcome, code, lines, certificate }.
async function verdictOn(source, { trustedKey = "", files = new Map() } = {}) {
  try {
    const options = { trustedKey: trustedKey.trim().toLowerCase(), files, behind: false };
    if (options.trustedKey) hex(32)(options.trustedKey);
    const isPage = source.trimStart().slice(0, 15).toLowerCase() === "<!doctype html>";
    let certificate, lines;
    if (isPage) ({ certificate, lines } = await pageLines(source, options));
    else {
      certificate = await readCertificate(parseJson(source));
      lines = await certificateLines(certificate, options);
    }
    const accepted = !lines.some(([basis]) => basis === CLAIMED);
    return { outcome: accepted ? "accepted" : "consistent", code: accepted ? 0 : 3, lines, certificate };
  } catch (error) {
    if (error instanceof Unsupported) {
      return { outcome: "consistent", code: 3, lines: [[CLAIMED, `everything: ${error.message}; run discreet verify`]], certificate: null };
    }
    if (!(error instanceof Rejected || error instanceof Refused)) throw error;
    return { outcome: "rejected", code: 1, lines: [["rejected", error.message]], certificate: null };
  }
}
