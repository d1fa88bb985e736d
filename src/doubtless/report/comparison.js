// Sorts, filters and writes out the table of a comparison. The numbers are those of the page's own JSON; what is
// written to LaTeX is the text of the cells, so that both round alike.
"use strict";
(() => {
  const table = document.getElementById("comparison");
  if (!table) return;
  const controls = document.querySelector(".controls");
  const cells = JSON.parse(document.getElementById("doubtless-comparison").textContent).table.cells;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const headings = all("thead tr:last-child th", table);
  const columns = headings.slice(1).map((heading, place) => ({ ...heading.dataset, heading, place: place + 1 }));
  const rows = all("tbody tr", table);
  const method = row => row.dataset.method;
  const cell = (row, column) => (cells[method(row)] || {})[column.metric] || {};
  const isNumber = value => typeof value === "number";
  const smallPrint = controls.querySelector("[data-small-print]");
  const shownRows = () => all("tbody tr", table).filter(row => !row.hidden);
  const shownColumns = () => columns.filter(column => !column.heading.hidden);

  // Which methods and columns are shown.
  const words = () => controls.querySelector("[type=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (name, wanted) => {
    const minus = wanted.filter(word => word.startsWith("-") && word.length > 1).map(word => word.slice(1));
    const plus = wanted.filter(word => !word.startsWith("-"));
    return !minus.some(word => name.includes(word)) && (!plus.length || plus.some(word => name.includes(word)));
  };
  const boxOf = (kind, name) => all(`[data-shows-${kind}]`, controls).find(box => box.getAttribute(`data-shows-${kind}`) === name);
  const methodBoxes = new Map(rows.map(row => [method(row), boxOf("method", method(row))]));
  const columnBoxes = new Map(columns.map(column => [column.metric, boxOf("column", column.metric)]));

  function showMethods() {
    const wanted = words();
    for (const row of rows) {
      row.hidden = !(methodBoxes.get(method(row)).checked && matches(method(row).toLowerCase(), wanted));
    }
    const hidden = new Set(rows.filter(row => row.hidden).map(method));
    for (const node of all("[data-of]")) node.toggleAttribute("hidden", hidden.has(node.dataset.of));
    markBest();
    sayWhatIsShown();
  }

  function showColumns() {
    for (const column of columns) {
      column.heading.hidden = !columnBoxes.get(column.metric).checked;
      for (const row of rows) row.cells[column.place].hidden = column.heading.hidden;
    }
    for (const heading of all("thead .groups th", table)) {
      const shown = shownColumns().filter(column => column.group === heading.textContent).length;
      heading.hidden = !shown;
      heading.colSpan = shown || 1;
    }
    for (const box of all("[data-shows-group]", controls)) {
      const own = columns.filter(column => column.group === box.dataset.showsGroup);
      const shown = own.filter(column => !column.heading.hidden).length;
      box.checked = shown === own.length;
      box.indeterminate = shown > 0 && shown < own.length;
    }
    sayWhatIsShown();
  }

  function markBest() {
    for (const column of columns) {
      const found = rows.filter(row => !row.hidden).map(row => cell(row, column).mean).filter(isNumber);
      const best = column.higher === "yes" ? Math.max(...found) : column.higher === "no" ? Math.min(...found) : null;
      const isBest = row => !row.hidden && isNumber(best) && cell(row, column).mean === best;
      for (const row of rows) row.cells[column.place].classList.toggle("first", isBest(row));
    }
  }

  function sayWhatIsShown() {
    controls.querySelector("output").textContent =
      `${shownRows().length} of ${rows.length} methods, ${shownColumns().length} of ${columns.length} columns`;
  }

  // Order: the best first, then the worst first, then as it was. What has no number stays below.
  function sort(heading) {
    const column = columns.find(one => one.heading === heading);
    const upwards = column ? column.higher === "no" : true;
    const turns = upwards ? ["none", "ascending", "descending"] : ["none", "descending", "ascending"];
    const turn = turns[(turns.indexOf(heading.getAttribute("aria-sort")) + 1) % turns.length];
    for (const one of headings) one.setAttribute("aria-sort", one === heading ? turn : "none");
    const sign = turn === "ascending" ? 1 : -1;
    const value = row => (column ? cell(row, column).mean : method(row));
    const missing = row => column && !isNumber(value(row));
    const ordered = turn === "none" ? rows : [...rows].sort((one, other) =>
      missing(one) || missing(other) ? missing(one) - missing(other)
        : sign * (column ? value(one) - value(other) : value(one).localeCompare(value(other))));
    table.tBodies[0].append(...ordered);
  }

  // CSV: full numbers. A kind of number that no shown cell has is no column.
  function csv() {
    const isFree = one => smallPrint.checked || !isNumber(one.mean);
    const kinds = [["", one => one.mean], [" std", one => one.std]];
    const small = [" low", " high", " rank", " published"].map(name => [name, one => one[name.trim()]]);
    if (smallPrint.checked) kinds.push(...small);
    kinds.push([" free", one => (isFree(one) ? one.free : null)]);
    const has = value => value !== null && value !== undefined;
    const written = shownColumns().flatMap(column => kinds.map(([name, value]) => [column, name, value]))
      .filter(([column, name, value]) => !name || shownRows().some(row => has(value(cell(row, column)))));
    const quote = value => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const lines = shownRows().map(row =>
      [method(row), ...written.map(([column, , value]) => (has(value(cell(row, column))) ? String(value(cell(row, column))) : ""))]);
    const heading = ["method", ...written.map(([column, name]) => column.metric + name)];
    return [heading, ...lines].map(line => line.map(quote).join(",") + "\n").join("");
  }

  // LaTeX: the text of the cells, for booktabs.
  const ESCAPES = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "·": "$\\cdot$", "−": "$-$",
    "±": "$\\pm$", "–": "--", "…": "\\ldots{}", "→": "$\\rightarrow$", "≥": "$\\geq$", "≤": "$\\leq$", "<": "$<$", ">": "$>$",
  };
  const escaped = words => words.replace(/[\\~^·−±–…→≥≤<>&%$#_{}]/g, character => ESCAPES[character] || "\\" + character);

  function texCell(row, column) {
    const shown = row.cells[column.place];
    const mean = shown.querySelector(".mean");
    if (!mean) return "";
    const spread = shown.querySelector(".spread");
    const command = mean.tagName === "I" ? "\\textit" : shown.classList.contains("first") ? "\\textbf" : "";
    const value = escaped(mean.textContent);
    return (command ? `${command}{${value}}` : value) + (spread ? escaped(spread.textContent) : "");
  }

  function texGroups() {
    const spans = [];
    for (const column of shownColumns()) {
      if (spans.length && spans.at(-1).group === column.group) spans.at(-1).count += 1;
      else spans.push({ group: column.group, count: 1 });
    }
    let at = 2;
    const rules = spans.map(({ count }) => `\\cmidrule(lr){${at}-${(at += count) - 1}}`).join(" ");
    return " & " + spans.map(({ group, count }) => `\\multicolumn{${count}}{c}{${escaped(group)}}`).join(" & ") + " \\\\\n" + rules;
  }

  function tex() {
    const arrow = { yes: " $\\uparrow$", no: " $\\downarrow$", "": "" };
    const names = shownColumns().map(column => escaped(column.heading.dataset.heading) + arrow[column.higher]);
    const lines = shownRows().map(row => [escaped(method(row)), ...shownColumns().map(column => texCell(row, column))]);
    return [
      "% \\usepackage{booktabs}", "\\begin{table}", "\\centering", `\\caption{${escaped(table.dataset.title)}}`,
      `\\begin{tabular}{l${"r".repeat(names.length)}}`, "\\toprule", texGroups(), ["Method", ...names].join(" & ") + " \\\\",
      "\\midrule", ...lines.map(line => line.join(" & ") + " \\\\"), "\\bottomrule", "\\end{tabular}", "\\end{table}", "",
    ].join("\n");
  }

  function download(kind) {
    const link = document.createElement("a");
    const type = kind === "csv" ? "text/csv" : "text/x-tex";
    link.href = URL.createObjectURL(new Blob([kind === "csv" ? csv() : tex()], { type: `${type};charset=utf-8` }));
    link.download = `${document.title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "comparison"}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // A method under the pointer in the legend stands out in every figure.
  function lightUp(name) {
    for (const node of all("#figures svg [data-of]")) node.classList.toggle("faint", name !== null && node.dataset.of !== name);
  }

  function check(boxes, wanted) {
    for (const [name, box] of boxes) box.checked = wanted(name);
  }

  for (const heading of headings) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(heading));
  }
  const key = new Set(columns.filter(column => "key" in column).map(column => column.metric));
  controls.addEventListener("submit", event => event.preventDefault());
  controls.addEventListener("input", event => {
    const { showsMethod, showsColumn, showsGroup, smallPrint: small } = event.target.dataset;
    if (showsGroup !== undefined) {
      for (const column of columns) if (column.group === showsGroup) columnBoxes.get(column.metric).checked = event.target.checked;
    }
    if (showsColumn !== undefined || showsGroup !== undefined) showColumns();
    if (showsMethod !== undefined || event.target.type === "search") showMethods();
    if (small !== undefined) table.classList.toggle("brief", !event.target.checked);
  });
  controls.addEventListener("click", event => {
    const { download: kind, methods, columns: chosen } = event.target.dataset;
    if (kind) download(kind);
    if (methods) (check(methodBoxes, () => methods === "all"), showMethods());
    if (chosen) (check(columnBoxes, name => chosen === "all" || key.has(name)), showColumns());
  });
  for (const entry of all("#figures .legend [data-of]")) {
    entry.addEventListener("pointerenter", () => lightUp(entry.dataset.of));
    entry.addEventListener("pointerleave", () => lightUp(null));
  }
  // A browser that comes back to the page may have kept what was typed and ticked; columns begin with the key figures.
  controls.reset();
  check(columnBoxes, name => key.has(name));
  table.classList.add("brief");
  showColumns();
  showMethods();
  controls.hidden = false;
})();
