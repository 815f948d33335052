/* Start: the theme, the tables, the heads or the text. */
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();
  for (const node of document.querySelectorAll("table.sortable")) table.sortable(node);
  const data = JSON.parse(document.getElementById("data").textContent);
  if (data.tokens) showText(data);
  else if (data.heads) showHeads(data);
})();
