"use strict";
const box = document.getElementById("cell"), cells = JSON.parse(document.getElementById("cells").textContent);
const say = (tag, text, kind) => { const made = document.createElement(tag); made.textContent = text; if (kind) made.className = kind; box.append(made); return made; };
const show = () => {
  const found = location.hash.match(/^#c(\d+)-(\d+)$/);
  if (!found || !cells.lines[found[1]]?.cells[found[2]]) { if (box.open) box.close(); return; }
  const line = cells.lines[found[1]], one = line.cells[found[2]];
  box.replaceChildren();
  say("h3", line.scenario);
  say("p", `${line.world === "live" ? "real processes" : "simulated"} · ${line.target} · night of ${cells.nights[found[2]]}`, "muted");
  say("p", `${one.counts}, ${one.seeds}.`);
  if (one.worst) say("p", one.worst);
  say("p", one.worst ? "This plays it again:" : "This plays the last one again:", "muted");
  say("code", one.command);
  if (one.runs.length) {
    say("p", "Runs that were kept:", "muted");
    const list = say("ul", "");
    for (const run of one.runs) {
      const link = document.createElement("a"), item = document.createElement("li");
      link.href = run.href; link.textContent = `seed ${run.seed}: ${run.outcome}`;
      item.append(link); list.append(item);
    }
  }
  const copy = say("button", "copy the command"), close = say("button", "close");
  copy.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(one.command); copy.textContent = "copied"; }
    catch { getSelection().selectAllChildren(box.querySelector("code")); }
  });
  close.addEventListener("click", () => box.close());
  if (!box.open) box.showModal();
};
box.addEventListener("close", () => { if (location.hash.startsWith("#c")) history.replaceState(null, "", location.pathname + location.search); });
box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
addEventListener("hashchange", show);
const newest = () => { for (const one of document.querySelectorAll(".newest")) one.scrollLeft = one.scrollWidth; };
for (const one of document.querySelectorAll("details")) one.addEventListener("toggle", newest);
const unfold = () => { const one = document.getElementById(decodeURIComponent(location.hash.slice(1))); if (one?.tagName === "DETAILS") { one.open = true; one.scrollIntoView(); } };
addEventListener("hashchange", unfold);
newest(); show(); unfold();
