"use strict";
// Niceties only: every page works without this file.

const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

for (const element of document.querySelectorAll("time[datetime]")) {
  const moment = new Date(element.dateTime);
  if (Number.isNaN(moment.getTime())) continue;
  element.title = element.dateTime.replace("T", " ").replace("Z", " UTC");
  element.textContent = local.format(moment);
}

for (const input of document.querySelectorAll("input[data-utc]")) {
  const hint = document.createElement("p");
  hint.className = "help";
  hint.setAttribute("aria-live", "polite");
  input.after(hint);
  const tell = () => {
    const moment = new Date(`${input.value}Z`);
    hint.textContent = Number.isNaN(moment.getTime()) ? "" : `That is ${local.format(moment)} where you are.`;
  };
  input.addEventListener("input", tell);
  tell();
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

for (const button of document.querySelectorAll("button[data-tick-all]")) {
  const boxes = [...button.form.querySelectorAll("input[type=checkbox][name=row]")];
  button.hidden = false;
  button.addEventListener("click", () => {
    const all = boxes.every((box) => box.checked);
    for (const box of boxes) box.checked = !all;
  });
}

// Review: keys lead through a plan. None of them sends anything; they can be turned off.
for (const review of document.querySelectorAll("[data-review]")) {
  const form = review.querySelector("[data-decide]");
  const keys = review.querySelector("[data-keys]");
  const toggle = review.querySelector("[data-keys-toggle]");
  const rows = [...review.querySelectorAll("[data-row]")];
  let isOff = false;
  try { isOff = localStorage.getItem("loom-keys") === "off"; } catch { /* No storage: the keys are on. */ }
  const named = (name) => form?.querySelector(`[name=${name}]`);
  const step = (by) => {
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[at === -1 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  };
  const open = () => {
    const row = rows.find((one) => one.contains(document.activeElement));
    const details = row?.querySelector("details");
    if (details) details.open = !details.open;
  };
  const acts = {
    j: () => step(1),
    k: () => step(-1),
    o: open,
    a: () => (named("count") ?? named("password"))?.focus(),
    r: () => named("comment")?.focus(),
    "?": () => { if (keys) keys.open = !keys.open; },
  };
  document.addEventListener("keydown", (event) => {
    if (isOff || event.ctrlKey || event.metaKey || event.altKey || !(event.key in acts)) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    acts[event.key]();
  });
  if (!toggle) continue;
  const tell = () => { toggle.textContent = isOff ? "Turn the keys on" : "Turn the keys off"; };
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    isOff = !isOff;
    try { localStorage.setItem("loom-keys", isOff ? "off" : "on"); } catch { /* It holds for this page. */ }
    tell();
  });
  tell();
}

// Graphs: fit, zoom by buttons and wheel, pan by dragging, find a node. Without this they scroll.
for (const tools of document.querySelectorAll("[data-graph-tools]")) {
  const svg = tools.nextElementSibling.querySelector("svg");
  const whole = svg.viewBox.baseVal;
  const size = { width: whole.width, height: whole.height };
  const show = (x, y, width, height) => svg.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
  const fit = () => show(0, 0, size.width, size.height);
  const zoom = (factor, x, y) => {
    const box = svg.viewBox.baseVal;
    const at = { x: x ?? box.x + box.width / 2, y: y ?? box.y + box.height / 2 };
    show(at.x - (at.x - box.x) / factor, at.y - (at.y - box.y) / factor, box.width / factor, box.height / factor);
  };
  const point = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  tools.hidden = false;
  // As high as the whole graph needs at this width, and never so low that a part of it cannot be read.
  const frame = () => {
    if (svg.classList.contains("fitted")) return;
    svg.classList.add("fitted");
    svg.setAttribute("height", Math.min(688, Math.max(240, Math.ceil(size.height * tools.clientWidth / size.width))));
  };
  if (size.height > 700 || size.width > tools.clientWidth) frame();
  for (const button of tools.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      frame();
      if (button.dataset.zoom === "fit") fit();
      else zoom(Number(button.dataset.zoom));
    });
  }
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = point(event);
    frame();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, at.x, at.y);
  }, { passive: false });
  let from = null;
  svg.addEventListener("pointerdown", (event) => { from = svg.classList.contains("fitted") ? point(event) : null; });
  svg.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) return;
    const box = svg.viewBox.baseVal, now = point(event);
    show(box.x + from.x - now.x, box.y + from.y - now.y, box.width, box.height);
  });
  tools.querySelector("[data-find]").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    for (const node of svg.querySelectorAll(".node.found")) node.classList.remove("found");
    if (!wanted) return;
    const nodes = [...svg.querySelectorAll(".node")];
    const hit = nodes.find((node) => node.dataset.name.toLowerCase() === wanted)
      ?? nodes.find((node) => node.textContent.toLowerCase().includes(wanted));
    if (!hit) return;
    hit.classList.add("found");
    frame();
    const at = hit.transform.baseVal.getItem(0).matrix;
    show(at.e - 400, at.f - 250, 980, 600);
    hit.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

// Work in the background: ask how it gets on until it has ended. Without this a link asks.
for (const box of document.querySelectorAll("[data-live]")) {
  const state = box.querySelector("[data-live-state]");
  const progress = box.querySelector("progress");
  const lines = box.querySelector("[data-live-lines]");
  let wait = 500;
  const ask = async () => {
    try {
      const reply = await fetch(box.dataset.live, { headers: { Accept: "application/json" } });
      if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
      const now = await reply.json();
      if (state.textContent !== now.state) state.textContent = now.state;
      progress.value = now.progress;
      if (now.state !== "queued" && now.state !== "running") {
        lines.replaceChildren(...now.lines.map((line) => {
          const item = document.createElement("li");
          item.textContent = line;
          return item;
        }));
        lines.hidden = now.lines.length === 0;
        if (now.state === "done") progress.value = 1;
        box.querySelector("[data-live-again]").hidden = false;
        return;
      }
    } catch (fault) {
      state.textContent = `not known: the server does not answer (${fault.message}); asking again`;
    }
    wait = Math.min(wait * 1.3, 5000);
    setTimeout(ask, wait);
  };
  ask();
}

// What was believed when: a slider over the rows of the two-axis picture. Without this the form asks by date.
for (const tools of document.querySelectorAll("[data-moment]")) {
  const svg = tools.nextElementSibling.querySelector("svg");
  const slider = tools.querySelector("input");
  const says = tools.querySelector("p");
  const field = document.getElementsByName(tools.dataset.moment)[0];
  const rows = [...svg.querySelectorAll("[data-known]")];
  const boxes = [...svg.querySelectorAll("[data-first]")];
  if (rows.length < 2) continue;
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.classList.add("now");
  svg.append(line);
  tools.hidden = false;
  const show = () => {
    const step = Number(slider.value);
    const told = [];
    for (const box of boxes) {
      const believed = Number(box.dataset.first) <= step && step < Number(box.dataset.end);
      box.classList.toggle("off", !believed);
      if (believed) told.push(box.querySelector("title").textContent.split("; believed")[0]);
    }
    const y = Number(rows[step].getAttribute("y")) - 28;
    for (const [name, value] of [["x1", 0], ["x2", svg.viewBox.baseVal.width], ["y1", y], ["y2", y]]) line.setAttribute(name, value);
    says.textContent = `${rows[step].textContent} UTC: ${told.join(" · ") || "nothing"}`;
    slider.setAttribute("aria-valuetext", `${rows[step].textContent} UTC`);
  };
  slider.addEventListener("input", () => {
    field.value = rows[Number(slider.value)].dataset.known;
    show();
  });
  show();
}
