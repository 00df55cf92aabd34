// Without this script the tables are plain tables, and all details can be opened.
"use strict";

function value(row, column) {
  const cell = row.cells[column];
  return "number" in cell.dataset ? Number(cell.dataset.number) : cell.textContent.trim();
}

function sort(table, column, downwards) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  rows.sort((first, second) => {
    const a = value(first, column), b = value(second, column);
    // What is no number comes last, whichever way.
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return downwards ? -order : order;
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      // Names from A on, numbers from the largest on; then the other way round.
      const downwards = before ? before === "ascending" : column > 0;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", downwards ? "descending" : "ascending");
      sort(table, column, downwards);
    });
  });
}

// On paper nothing can be opened.
let closed = [];
addEventListener("beforeprint", () => {
  closed = Array.from(document.querySelectorAll("details:not([open])"));
  for (const each of closed) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of closed) each.open = false;
});
