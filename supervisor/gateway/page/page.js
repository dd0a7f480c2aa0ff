// Draws /status.json anew every second while somebody looks. Texts of others become text nodes
// only, never markup.
"use strict";

const PERIOD_MS = 1000;
const COLOURS = 6;
const STATES = {
  ready: "ready",
  busy: "busy",
  loading: "wait",
  spawning: "wait",
  registering: "wait",
  draining: "wait",
  unloading: "wait",
  backoff: "bad",
  lost: "bad",
  fatal: "bad",
};
const byId = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count.toFixed(count < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.floor(seconds) % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  const shown = first < 0 ? parts.slice(3) : parts.slice(first, first + 2);
  return shown.map(([count, unit]) => `${count} ${unit}`).join(" ");
}

// Counters of the last looks: what happened between the first and the last of them is a rate.
const looks = [];
const LOOKS = 5;

function rates(state) {
  // Who looks too often is told the same moment again.
  if (looks.length === 0 || looks[looks.length - 1].uptime_s !== state.uptime_s) looks.push(state);
  // A daemon that started anew counts from zero.
  if (looks.length > 1 && state.uptime_s < looks[looks.length - 2].uptime_s) {
    looks.splice(0, looks.length - 1);
  }
  if (looks.length > LOOKS) looks.shift();
  const before = new Map(looks[0].models.map((model) => [model.name, model]));
  const seconds = state.uptime_s - looks[0].uptime_s;
  return new Map(
    state.models.map((model) => {
      const earlier = before.get(model.name);
      if (!earlier || seconds <= 0) return [model.name, {}];
      const tokens = model.tokens - earlier.tokens;
      const chunks = model.chunks - earlier.chunks;
      return [model.name, { speed: tokens / seconds, run: chunks > 0 ? tokens / chunks : null }];
    }),
  );
}

function figure(name, value) {
  const pair = element("div");
  pair.append(element("dt", "", name), element("dd", "", value));
  return pair;
}

function modelCard(model, rate) {
  const card = element("article", "model");
  const top = element("div", "top");
  top.append(element("span", "name", model.name));
  top.append(element("span", `state ${STATES[model.state] || ""}`, model.state));
  if (!model.drafted) top.append(element("span", "quiet", "no draft"));
  const figures = element("dl", "figures");
  figures.append(figure("tokens/s", rate.speed ? rate.speed.toFixed(1) : "–"));
  figures.append(figure("tokens/cycle", rate.run ? rate.run.toFixed(2) : "–"));
  figures.append(figure("running", String(model.active)));
  figures.append(figure("queued", String(model.queued)));
  figures.append(figure("answered", String(model.completed)));
  card.append(top, figures);
  if (model.progress_ratio !== null) {
    const progress = element("progress");
    progress.value = model.progress_ratio;
    card.append(progress);
  }
  if (model.reason) {
    const bad = STATES[model.state] === "bad";
    card.append(element("p", bad ? "reason bad" : "reason", model.reason));
  }
  return card;
}

function drawMemory(state) {
  const held = state.workers.filter((worker) => worker.memory_bytes > 0);
  const used = held.reduce((sum, worker) => sum + worker.memory_bytes, 0);
  const parts = held.map((worker, n) => {
    const part = element("span");
    part.style.width = `${(100 * worker.memory_bytes) / state.pool_bytes}%`;
    part.style.background = `var(--c${n % COLOURS})`;
    return part;
  });
  const labels = held.map((worker, n) => {
    const label = element("li");
    const mark = element("i");
    mark.style.background = `var(--c${n % COLOURS})`;
    label.append(mark, `${worker.name} ${bytes(worker.memory_bytes)}`);
    return label;
  });
  const text = `${bytes(used)} of ${bytes(state.pool_bytes)} held by workers`;
  byId("memory-bar").replaceChildren(...parts);
  byId("memory-bar").setAttribute("aria-label", text);
  byId("memory-text").textContent = text;
  byId("memory-legend").replaceChildren(...labels);
}

function drawEvents(events) {
  byId("events-section").hidden = events.length === 0;
  byId("events").replaceChildren(
    ...events.map((event) => {
      const item = element("li");
      const moment = new Date(event.at_unix_s * 1000);
      item.append(element("time", "", moment.toLocaleTimeString()), event.text);
      return item;
    }),
  );
}

function draw(state) {
  const rate = rates(state);
  const daemon = byId("daemon");
  daemon.classList.remove("lost");
  daemon.textContent = `${state.version}, ${state.state} for ${duration(state.uptime_s)}`;
  byId("problems").hidden = state.problems.length === 0;
  byId("problems").replaceChildren(...state.problems.map((text) => element("li", "", text)));
  drawMemory(state);
  byId("models").replaceChildren(
    ...state.models.map((model) => modelCard(model, rate.get(model.name))),
  );
  byId("no-models").hidden = state.models.length > 0;
  drawEvents(state.events);
}

async function look() {
  try {
    const response = await fetch("/status.json", { signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(`status ${response.status}`);
    draw(await response.json());
  } catch (error) {
    const daemon = byId("daemon");
    daemon.textContent = `the daemon does not answer (${error.message})`;
    daemon.classList.add("lost");
  }
}

async function watch() {
  while (true) {
    if (!document.hidden) await look();
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

watch();
