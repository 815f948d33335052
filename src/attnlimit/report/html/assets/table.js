/* Tables that sort: by the number in a cell's data-value, else by its text. */
const table = (() => {
  function compare(a, b) {
    const [x, y] = [Number(a), Number(b)];
    if (a === "" || b === "") return (a === "") - (b === "");
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  }

  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;

  function resort(node) {
    const heads = [...node.tHead.rows[0].cells];
    const column = heads.findIndex((cell) => cell.hasAttribute("aria-sort"));
    if (column < 0) return;
    const sign = heads[column].getAttribute("aria-sort") === "ascending" ? 1 : -1;
    const rows = [...node.tBodies[0].rows].map((row) => [value(row, column), row]);
    // empty cells stay last in both directions
    rows.sort(([a], [b]) => (a === "" || b === "" ? compare(a, b) : sign * compare(a, b)));
    node.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function sortable(node) {
    const heads = [...node.tHead.rows[0].cells];
    for (const cell of heads) {
      const button = draw.make(cell, "button", { type: "button" }, cell.textContent);
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = cell.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", up ? "ascending" : "descending");
        resort(node);
      });
    }
  }

  return { sortable, resort };
})();
