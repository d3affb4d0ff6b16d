// The page: files are dropped or chosen, read on this machine, and never sent anywhere.

const HEADLINES = {
  accepted: "Accepted. The numbers hold, and a key that you trust vouches for the rest.",
  consistent: "Consistent, and not accepted. The numbers follow from each other; what is marked as claimed, anybody could have written.",
  rejected: "Rejected. Do not rely on it.",
};

function show(place, name, verdict) {
  const element = (tag, words, kind) => {
    const made = document.createElement(tag);
    made.textContent = words;
    if (kind) made.className = kind;
    return made;
  };
  const rows = verdict.lines.map(([basis, words]) => {
    const row = document.createElement("li");
    row.append(element("b", basis, `basis ${basis.replaceAll(" ", "-")}`), element("span", words));
    return row;
  });
  const lines = document.createElement("ul");
  lines.append(...rows);
  const parts = [element("h2", name), element("p", HEADLINES[verdict.outcome], `verdict ${verdict.outcome}`), lines];
  if (verdict.certificate) {
    const details = document.createElement("details"), items = document.createElement("ul");
    items.append(...verdict.certificate.not_covered.map((words) => element("li", words)));
    details.append(element("summary", "Not covered by the guarantee"), items);
    parts.push(details);
  }
  place.replaceChildren(...parts);
}

const isDocument = (source) => /^\s*(\{|<!doctype html>)/i.test(source.slice(0, 100));

function startPage() {
  const place = document.getElementById("result"), key = document.getElementById("key");
  let held = [];
  const verify = async () => {
    if (held.length === 0) return;
    place.replaceChildren("Recomputing …");
    await new Promise((next) => setTimeout(next, 20)); // lets the browser show the line
    const digests = new Map(), documents = [];
    for (const file of held) {
      const bytes = new Uint8Array(await file.arrayBuffer());
      digests.set(file.name, await sha256(bytes));
      const start = new TextDecoder().decode(bytes.slice(0, 4096));
      const certificate = start.includes('"discreet certificate') || /^\s*<!doctype html>/i.test(start);
      if (isDocument(start) && (certificate || held.length === 1)) documents.push([file.name, new TextDecoder().decode(bytes)]);
    }
    if (documents.length !== 1) {
      place.replaceChildren(documents.length ? "Drop one certificate or report at a time." : "None of these files is a certificate or a report of Discreet.");
      return;
    }
    const [[name, source]] = documents;
    digests.delete(name);
    show(place, name, await verdictOn(source, { trustedKey: key.value, files: digests }));
  };
  const take = (files) => {
    held = [...files];
    verify();
  };
  const chooser = document.getElementById("files");
  chooser.addEventListener("click", () => (chooser.value = "")); // a changed file can be chosen again
  chooser.addEventListener("change", () => take(chooser.files));
  key.addEventListener("change", verify);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files);
  });
}

// A report that embeds this script recomputes its own certificate. It cannot vouch for its own words.
async function startReport(place) {
  try {
    const carried = parseJson(document.getElementById("discreet-report").textContent);
    const certificate = await readCertificate(carried.get("certificate"));
    const lines = await certificateLines(certificate, { trustedKey: "", files: new Map(), behind: false });
    const computed = lines.find(([basis, words]) => basis === COMPUTED && words.startsWith("guarantee"));
    place.textContent = computed
      ? `The script in this page recomputed the guarantee: ${computed[1].split(": ").slice(1).join(": ")}. `
      : "The script in this page has no theorem for these releases. ";
    place.append("A page cannot vouch for itself: drop this file on a verifier page from a source that you trust, or run discreet verify.");
    place.classList.add("done");
  } catch (error) {
    place.textContent = `Not valid. ${error.message} Do not rely on the numbers below.`;
    place.className = "verdict bad";
  }
}

const embedded = document.getElementById("discreet-self-check");
if (embedded) startReport(embedded);
else if (document.getElementById("files")) startPage();
