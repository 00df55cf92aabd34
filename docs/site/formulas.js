// Loads MathJax, which lies beside the pages, where a page has formulas.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
  chtml: { mtextInheritFont: true },
};
const beside = document.currentScript.src;
document.addEventListener("DOMContentLoaded", () => {
  if (document.querySelector(".arithmatex")) {
    const script = document.createElement("script");
    script.src = new URL("../mathjax/tex-chtml.js", beside).href;
    document.head.append(script);
  }
});

// Docstrings and headings write subscripts as Σ_c, μ_kc or w_{c+1}, for readers of the code: the site sets them low.
const subscripted = /(?<![\p{L}\p{N}_.])(\p{L}\p{M}?)_([A-Za-zα-ω0-9]{1,3}(?![A-Za-z0-9_])|\{[^{}]+\})/gu;
document.addEventListener("DOMContentLoaded", () => {
  for (const part of document.querySelectorAll(".doc-contents, .md-typeset :is(td, h2, h3)")) {
    const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      const text = walker.currentNode;
      if (text.data.includes("_") && !text.parentElement.closest("code, pre, a, .arithmatex")) found.push(text);
    }
    for (const text of found) {
      const pieces = text.data.split(subscripted);
      const set = pieces.map((piece, place) => {
        if (place % 3 === 0) return piece;
        // Greek capitals stay upright: Σ is a sum, too.
        const element = document.createElement(place % 3 === 2 ? "sub" : /^[A-Za-zα-ω]/u.test(piece) ? "i" : "span");
        element.textContent = piece.replace(/^\{|\}$/g, "");
        return element;
      });
      text.replaceWith(...set);
    }
  }
});
