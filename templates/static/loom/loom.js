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
