// An accountant of its own, which shares nothing with the Python package. Its bounds on epsilon are upper bounds:
//
// * Gaussian releases compose to one, of mu = sqrt(sum of (sensitivity / noise)^2), whose privacy curve is
//   delta(epsilon) = phi(u) (M(u) - M(u + mu)), u = epsilon / mu - mu / 2, M the Mills ratio (Balle and Wang 2018).
// * Other events by a privacy loss distribution on a lattice. The curve delta(t), t = e^epsilon, of an event is
//   convex, so the straight lines between its values on the lattice lie above it: they are the curve of a pair of
//   distributions that dominates the event and has its losses on the lattice (Doroshenko et al. 2022). Pairs compose
//   by convolution. The distribution is tilted by e^(lambda loss), so that tails keep their relative accuracy.
//
// Rounding. M has a relative error below MILLS. A curve on the lattice that is off by eta moves the composed delta
// by at most eta for each release, since the other releases average the curve of this one. The error of the fast
// Fourier transforms is bounded in the l2 norm and multiplied by that of the weights of the tail. All of it, and the
// mass outside of the window, is added to delta.

class Unsupported extends Error {}

const EPS = 2 ** -52;
const MILLS = 1e-13;
const ROOT_2PI = Math.sqrt(2 * Math.PI);
const density = (x) => Math.exp((-x * x) / 2) / ROOT_2PI;

// M(x) = (1 - Phi(x)) / phi(x): a continued fraction above 2, and the series of (Phi(x) - 1/2) / phi(x) below.
function mills(x) {
  if (x >= 2) {
    let fraction = x;
    for (let n = 30 + Math.ceil(400 / (x * x)); n >= 1; n--) fraction = x + n / fraction;
    return 1 / fraction;
  }
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-19 * Math.abs(sum); n++) {
    term *= (x * x) / (2 * n + 1);
    sum += term;
  }
  return (ROOT_2PI * Math.exp((x * x) / 2)) / 2 - sum;
}

const tail = (x) => (x < -38 ? 1 : x > 38 ? 0 : x < 0 ? 1 - density(x) * mills(-x) : density(x) * mills(x));

// Bounds on delta at epsilon for one release of N(0, 1) against N(mu, 1).
function gaussianDelta(epsilon, mu) {
  const u = epsilon / mu - mu / 2;
  if (u < -37) return [0, 1];
  if (u > 37) return [0, 1e-290];
  const slack = MILLS * (1 + u * u + mu * mu), near = mills(u), far = mills(u + mu);
  const size = density(u);
  const lower = size * (near * (1 - slack) - far * (1 + slack));
  return [Math.max(0, lower), Math.min(1, size * (near * (1 + slack) - far * (1 - slack)) * (1 + slack))];
}

// Bounds on epsilon at delta for the same release: the root of each bound on delta.
function gaussianEpsilon(delta, mu) {
  const root = (side) => {
    if (gaussianDelta(0, mu)[side] <= delta) return 0;
    let [low, high] = [0, 1];
    while (gaussianDelta(high, mu)[side] > delta) high *= 2;
    for (let i = 0; i < 100 && high - low > EPS * high; i++) {
      const middle = (low + high) / 2;
      if (gaussianDelta(middle, mu)[side] > delta) low = middle;
      else high = middle;
    }
    return side ? high : low;
  };
  return [root(0), root(1)];
}

// Curves: delta at loss l of one release, in the direction in which a record is there (with), or is not.
function curveOf(event, sensitivity, direction) {
  if (event.kind === "gaussian") {
    const mu = sensitivity / event.noise;
    return (loss) => pairDelta(loss, mu);
  }
  if (event.kind === "poisson-sampled" && event.of.kind === "gaussian" && sensitivity === 1) {
    const [q, s] = [event.rate, event.of.noise];
    return direction === "with" ? (loss) => sampledWith(loss, q, s) : (loss) => sampledWithout(loss, q, s);
  }
  if (event.kind === "laplace") {
    const most = sensitivity / event.scale;
    return (loss) => (loss >= most ? 0 : loss <= -most ? -Math.expm1(loss) : -Math.expm1((loss - most) / 2));
  }
  if (event.kind === "approximate-dp" && sensitivity === 1) {
    const { epsilon, delta } = event, most = Math.exp(epsilon);
    return (loss) => {
      if (loss >= epsilon) return delta;
      if (loss <= -epsilon) return 1 - Math.exp(loss) * (1 - delta);
      return delta + ((1 - delta) * (most - Math.exp(loss))) / (most + 1);
    };
  }
  throw new Unsupported(`this page has no theorem for ${event.kind} events under these neighbours`);
}

const pairDelta = (loss, mu) => {
  const u = loss / mu - mu / 2;
  if (u < -37) return -Math.expm1(loss);
  return u > 37 ? 0 : Math.max(0, density(u) * (mills(u) - mills(u + mu)));
};

// The record joins with probability q: (1 - q) N(0, s^2) + q N(1, s^2) against N(0, s^2).
function sampledWith(loss, q, s) {
  const above = Math.expm1(loss) + q;
  if (above <= 0) return -Math.expm1(loss);
  const x = s * s * Math.log(above / q) + 0.5;
  return Math.max(0, q * tail((x - 1) / s) - above * tail(x / s));
}

// The same pair the other way round; its losses are at most -log(1 - q).
function sampledWithout(loss, q, s) {
  const below = Math.expm1(-loss) + q;
  if (below <= 0) return 0;
  const x = s * s * Math.log(below / q) + 0.5, odds = Math.exp(loss);
  return Math.max(0, odds * (below * tail(-x / s) - q * tail((1 - x) / s)));
}

// Masses on lattice points of the pair whose curve joins the values of `curve` on the lattice by straight lines.
function masses(curve, first, step, count) {
  const points = new Float64Array(count), found = new Float64Array(count);
  for (let i = 0; i < count; i++) points[i] = curve((first + i) * step);
  let before = (points[0] - 1) / Math.exp(first * step);
  for (let i = 0; i < count; i++) {
    const odds = Math.exp((first + i) * step);
    const slope = i + 1 < count ? (points[i + 1] - points[i]) / (odds * Math.expm1(step)) : 0;
    found[i] = odds * (slope - before);
    before = slope;
  }
  return { first, found, infinite: points[count - 1] };
}

function transform(re, im, inverse) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  const cos = new Float64Array(n / 2), sin = new Float64Array(n / 2);
  for (let i = 0; i < n / 2; i++) {
    cos[i] = Math.cos((2 * Math.PI * i) / n);
    sin[i] = (inverse ? 1 : -1) * Math.sin((2 * Math.PI * i) / n);
  }
  for (let size = 2; size <= n; size *= 2) {
    const half = size / 2, stride = n / size;
    for (let start = 0; start < n; start += size) {
      for (let i = 0, k = 0; i < half; i++, k += stride) {
        const a = start + i, b = a + half;
        const x = re[b] * cos[k] - im[b] * sin[k], y = re[b] * sin[k] + im[b] * cos[k];
        re[b] = re[a] - x;
        im[b] = im[a] - y;
        re[a] += x;
        im[a] += y;
      }
    }
  }
  if (inverse) {
    for (let i = 0; i < n; i++) {
      re[i] /= n;
      im[i] /= n;
    }
  }
}

// log of the sum of masses * e^(tilt * loss)
function cumulant(part, tilt, step) {
  let largest = -Infinity;
  for (let i = 0; i < part.found.length; i++) {
    if (part.found[i] > 0) largest = Math.max(largest, Math.log(part.found[i]) + tilt * (part.first + i) * step);
  }
  let sum = 0;
  for (let i = 0; i < part.found.length; i++) {
    sum += part.found[i] * Math.exp(Math.max(-700, tilt * (part.first + i) * step - largest));
  }
  return largest + Math.log(sum);
}

// The largest loss that an event can have, where there is one.
function mostLoss(event, sensitivity, direction) {
  if (event.kind === "laplace") return sensitivity / event.scale;
  if (event.kind === "approximate-dp") return event.epsilon;
  return event.kind === "poisson-sampled" && direction === "without" ? -Math.log1p(-event.rate) : Infinity;
}

// The largest and the smallest loss of one release that matter at all.
function range(curve, most, negligible) {
  let [low, high] = [-1e-3, 1e-3];
  while (high < most && curve(high) > negligible && high < 1e4) high *= 1.3;
  // P(loss <= l) is at most 1 - delta(l) + e^l delta'(l); beyond the window the first point takes the mass.
  while (curve(low) + Math.expm1(low) > 1e6 * negligible && low > -1e4) low *= 1.3;
  return [low, high];
}

// An upper bound on epsilon at delta of `parts`, [event, count] pairs, in one direction.
function latticeEpsilon(parts, sensitivity, direction, delta) {
  const releases = parts.reduce((sum, [, count]) => sum + count, 0);
  if (releases > 2e6) throw new Unsupported("this page does not compose more than two million releases");
  const spare = (1e-5 * delta) / releases;
  const curves = parts.map(([event, count]) => [curveOf(event, sensitivity, direction), count]);
  const ranges = curves.map(([curve], i) => range(curve, mostLoss(parts[i][0], sensitivity, direction), spare));
  const size = releases <= 1e3 ? 2 ** 15 : releases <= 2e4 ? 2 ** 17 : releases <= 2e5 ? 2 ** 18 : 2 ** 20;

  // First on a coarse lattice: the tilt, and where the composed loss lies; then on one that fits it.
  const [low, high] = [Math.min(...ranges.map((r) => r[0])), Math.max(...ranges.map((r) => r[1]))];
  const discretise = (step) =>
    curves.map(([curve, count], i) => {
      const first = Math.floor(ranges[i][0] / step), last = Math.ceil(ranges[i][1] / step) + 1;
      return { ...masses(curve, first, step, last - first + 1), count };
    });
  const total = (pieces, tilt, step) =>
    pieces.reduce((sum, part) => sum + part.count * cumulant(part, tilt, step), 0);
  const coarse = (high - low) / 4000, draft = discretise(coarse);
  let best = Infinity, tilt = 1;
  for (let candidate = 0.05; candidate < 2000; candidate *= 1.12) {
    const bound = (total(draft, candidate, coarse) - Math.log(delta)) / candidate;
    if (bound < best) [best, tilt] = [bound, candidate];
  }
  const bump = Math.min(0.01, tilt / 50), at = total(draft, tilt, coarse);
  const [up, down] = [total(draft, tilt + bump, coarse), total(draft, tilt - bump, coarse)];
  const mean = (up - down) / (2 * bump), spread = Math.sqrt(Math.max((up + down - 2 * at) / bump ** 2, 1e-12));
  const width = Math.max(26 * spread + 2 * coarse, 1.02 * (high - low), 1e-9);
  const step = width / (size - 8), pieces = discretise(step);
  const start = Math.round((mean - width / 2) / step);

  const re = new Float64Array(size).fill(1), im = new Float64Array(size);
  let logNorm = 0, error = 0, infinite = 0;
  for (const part of pieces) {
    const [x, y, log] = [new Float64Array(size), new Float64Array(size), cumulant(part, tilt, step)];
    let squares = 0;
    part.found.forEach((mass, i) => {
      const tilted = mass * Math.exp(Math.max(-700, tilt * (part.first + i) * step - log));
      x[(((part.first + i) % size) + size) % size] += tilted;
      squares += tilted * tilted;
    });
    transform(x, y, false);
    for (let k = 0; k < size; k++) {
      const [length, angle] = [Math.hypot(x[k], y[k]), part.count * Math.atan2(y[k], x[k])];
      const power = length > 0 ? Math.exp(part.count * Math.log(length)) : 0;
      const [c, s] = [power * Math.cos(angle), power * Math.sin(angle)];
      [re[k], im[k]] = [re[k] * c - im[k] * s, re[k] * s + im[k] * c];
    }
    logNorm += part.count * log;
    error += part.count * 16 * EPS * Math.log2(size) * (Math.sqrt(squares) + 1 / Math.sqrt(size));
    infinite += part.count * Math.max(0, part.infinite);
  }
  transform(re, im, true);

  // The tilted mass outside of the window, by Chernoff's bound on either side.
  const beyond = (edge, move) => Math.exp(total(pieces, tilt + move, step) - logNorm - move * edge);
  const moves = [0.5, 1, 2, 4, 8].map((factor) => factor / spread);
  const least = (bounds) => Math.min(1, ...bounds.filter(Number.isFinite)); // where rounding leaves no bound, all of it
  const outside =
    least(moves.map((move) => beyond((start + size) * step, move))) + least(moves.map((move) => beyond(start * step, -move)));

  const rounding = releases * 1e-15;
  const deltaAt = (epsilon) => {
    let sum = 0, weights = 0;
    const from = Math.max(start, Math.floor(epsilon / step));
    for (let place = from; place < start + size; place++) {
      const over = place * step - epsilon;
      if (over <= 0) continue;
      const weight = -Math.expm1(-over) * Math.exp(-tilt * over);
      sum += weight * re[((place % size) + size) % size];
      weights += weight * weight;
      if (tilt * over > 45 && over > 1) break;
    }
    const scale = Math.exp(logNorm - tilt * epsilon);
    const tailMass = Math.max(0, sum) + error * Math.sqrt(weights) + outside + 1e-16;
    const bound = scale * tailMass * (1 + 1e-9) + infinite + rounding;
    if (Number.isNaN(bound)) throw new Unsupported("these events exceed the arithmetic of this page");
    return bound;
  };
  let [left, right] = [0, Math.max(best, 1e-6) * 1.05];
  if (deltaAt(0) <= delta) return 0;
  while (deltaAt(right) > delta) {
    right *= 1.3;
    if (right > 1e5) throw new Unsupported("delta is too small for the arithmetic of this page");
  }
  for (let i = 0; i < 60 && right - left > 1e-9 * right; i++) {
    const middle = (left + right) / 2;
    if (deltaAt(middle) > delta) left = middle;
    else right = middle;
  }
  return right;
}

const computed = new Map();

// Bounds [lower, upper] on epsilon at delta; the lower one is null where this page has none.
function epsilonOf(parts, neighbours, groupSize, delta) {
  const key = [parts.map(([event, count]) => `${canonical(event.data)} ${count}`), neighbours, groupSize, delta].join("|");
  if (!computed.has(key)) computed.set(key, boundsOn(parts, neighbours, groupSize, delta));
  return computed.get(key);
}

function boundsOn(parts, neighbours, groupSize, delta) {
  const sensitivity = groupSize * (neighbours === "replace-one" ? 2 : 1);
  const useful = parts.filter(([event]) => !(event.kind === "approximate-dp" && event.epsilon === 0 && event.delta === 0));
  if (useful.length === 0) return [0, 0];
  if (useful.some(([event]) => event.noise === 0 || event.of?.noise === 0)) return [Infinity, Infinity];
  if (delta > 0 && useful.every(([event]) => event.kind === "gaussian")) {
    const squares = useful.reduce((sum, [event, count]) => sum + count * (sensitivity / event.noise) ** 2, 0);
    const mu = Math.sqrt(squares);
    return [gaussianEpsilon(delta, mu * (1 - 1e-13))[0], gaussianEpsilon(delta, mu * (1 + 1e-13))[1]];
  }
  if (useful.every(([event]) => event.kind === "laplace" || (event.kind === "approximate-dp" && event.delta === 0)) && delta === 0) {
    const cost = ([event, count]) => count * (event.kind === "laplace" ? sensitivity / event.scale : event.epsilon);
    const sum = useful.reduce((total, part) => total + cost(part), 0);
    if (sensitivity === 1 || useful.every(([event]) => event.kind === "laplace")) return [null, sum * (1 + 1e-12)];
  }
  if (delta < 1e-12) throw new Unsupported("this page has no theorem for these events at so small a delta");
  const upper = Math.max(...["with", "without"].map((way) => latticeEpsilon(useful, sensitivity, way, delta)));
  return [null, upper];
}
