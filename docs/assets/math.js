"use strict";
// Formulas are typeset by KaTeX, which the site brings along. Instant loading of pages is off, so once is enough.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const text = place.textContent.trim();
    const display = text.startsWith("\\[");
    katex.render(text.slice(2, -2), place, { displayMode: display, throwOnError: false });
    if (display) { place.tabIndex = 0; place.setAttribute("role", "region"); place.setAttribute("aria-label", "formula"); }
  }
});
