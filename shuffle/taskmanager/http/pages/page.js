/* The status page of a TaskManager, and the page of its cluster.
 *
 * The script reads server-sent events with fetch, because EventSource cannot send a token. Names are
 * chosen by tenants, so everything is shown by textContent and nothing is parsed as HTML. A table
 * keeps its rows by key and changes only the cells whose text has changed.
 */
"use strict";
(() => {
  const HISTORY_SECONDS = 300; // what the charts show
  const ROWS = 20; // rows of a table before "more"
  const MORE_ROWS = 100;
  const STALE_SECONDS = 5; // without an event for so long, the numbers are old
  const RETRY_SECONDS = [1, 2, 5, 10];
  const CLUSTER_SECONDS = 3; // between two questions for the cluster
  const WITHOUT_STREAM_SECONDS = 2; // the same for the status, while there are too many streams
  const MAX_WAITS = 30; // trees of waits that are shown
  const MAX_DEPTH = 8;
  const MAP_OUTPUTS = 20; // map outputs that one request asks for
  const ANSWER_SECONDS = 15; // the longest wait for an answer to what a reader asks for

  const $ = (id) => document.getElementById(id);

  // ---- elements ------------------------------------------------------------------------------

  function el(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  function svg(tag, attributes = {}) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  /* Only HTTP: another scheme could run a script. */
  function setLink(anchor, url) {
    if (!/^https?:\/\//.test(url)) anchor.removeAttribute("href");
    else if (anchor.getAttribute("href") !== url) {
      anchor.href = url;
      anchor.rel = "noreferrer noopener";
    }
  }

  function setClass(node, name) {
    if (node.className !== name) node.className = name;
  }

  // ---- numbers as texts ----------------------------------------------------------------------

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  function bytes(count) {
    let value = count;
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
      value /= 1024;
      unit += 1;
    }
    const digits = unit === 0 || value >= 100 ? 0 : 1;
    return `${value.toFixed(digits)} ${UNITS[unit]}`;
  }

  const perSecond = (value) => (value === null ? "–" : `${bytes(value)}/s`);
  const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const count = (value) => GROUPED.format(value);
  const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %`);

  function seconds(value) {
    if (value === null || value === undefined) return "–";
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    if (value < 100) return `${value.toFixed(1)} s`;
    if (value < 7200) return `${Math.round(value / 60)} min`;
    if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
    return `${Math.round(value / 86400)} days`;
  }

  const resourceWords = (resource) => resource.replace(/_bytes$/, "").replaceAll("_", " ");
  const amount = (resource, value) => (resource.endsWith("_bytes") ? bytes(value) : count(value));

  // ---- bars ----------------------------------------------------------------------------------

  /* A bar repeats numbers that stand beside it, so it is hidden from screen readers. */
  class Bar {
    constructor(wide = false) {
      this.node = el("div", { className: "bar", ariaHidden: "true" });
      this.base = wide ? "wide bar" : "bar";
    }

    /* Show shares of the whole, one after the other; null: there is nothing to show. */
    update(shares, warns = true) {
      this.node.hidden = shares === null;
      if (shares === null) return;
      const sum = shares.reduce((a, b) => a + b, 0);
      setClass(this.node, this.base + (!warns || sum < 0.8 ? "" : sum < 0.95 ? " high" : " full"));
      while (this.node.children.length < shares.length) this.node.append(el("span"));
      shares.forEach((share, index) => {
        const width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
        const { style } = this.node.children[index];
        if (style.width !== width) style.width = width;
      });
    }
  }

  // ---- tables --------------------------------------------------------------------------------

  let tables = 0;

  /* A sortable table whose rows are kept by key.
   *
   * A column has a head, a meaning, and `text` of a row; `value`, its number in the unit of the
   * status, by which it sorts; `bar`, shares, and `warns`, whether a full one is a problem; `link`,
   * an address of the configuration; `kind`: "num", "name" or "words". `key` tells rows apart,
   * `worst` is the order before the reader chooses one: larger is first. `detail` makes what opens
   * below a row: an object with update(row), and close() if it must know that it is gone.
   */
  class Table {
    constructor(parent, { caption, columns, key, worst, detail, of, legend = true }) {
      this.columns = columns;
      this.key = key;
      this.worst = worst;
      this.detail = detail;
      this.of = of;
      this.limit = ROWS;
      this.sorted = null;
      this.descending = true;
      this.open = new Map();
      this.rows = new Map();
      this.last = [];
      this.body = el("tbody");
      this.heads = columns.map((column, index) => this.head(column, index));
      this.table = el("table", { ariaLabel: caption }, el("thead", {}, el("tr", {}, ...this.heads)), this.body);
      // The region scrolls by itself, so the page never does; the keyboard reaches it.
      this.region = el("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption }, this.table);
      this.empty = el("p", { className: "empty" }, `No ${of}.`);
      this.moreText = el("span");
      this.moreButton = el("button", { type: "button" });
      this.moreButton.addEventListener("click", () => {
        this.limit += MORE_ROWS;
        this.update(this.last);
      });
      this.more = el("p", { className: "more", hidden: true }, this.moreText, this.moreButton);
      parent.append(this.empty, this.region, this.more);
      if (legend) parent.append(this.legend());
    }

    head(column, index) {
      const button = el("button", { type: "button", title: column.meaning }, column.head);
      button.addEventListener("click", () => {
        this.descending = this.sorted === index ? !this.descending : column.kind === "num" || Boolean(column.bar);
        this.sorted = index;
        this.heads.forEach((head, at) => {
          if (at !== index) head.removeAttribute("aria-sort");
          else head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
        });
        this.update(this.last);
      });
      return el("th", { scope: "col", className: column.kind === "num" ? "num" : "" }, button);
    }

    legend() {
      const list = el("dl");
      for (const column of this.columns) {
        list.append(el("dt", {}, column.head), el("dd", {}, column.meaning));
      }
      this.legendNode = el("details", { className: "legend" }, el("summary", {}, `What the columns of ${this.of} mean`), list);
      return this.legendNode;
    }

    update(rows) {
      this.last = rows;
      const shown = this.order(rows).slice(0, this.limit);
      const kept = new Map();
      let before = null;
      for (const row of shown) {
        const key = this.key(row);
        if (kept.has(key)) continue;
        const made = this.rows.get(key) ?? this.row(key);
        kept.set(key, made);
        this.fill(made, row);
        before = this.place(made.node, before);
        if (made.below) {
          made.detail.update(row);
          before = this.place(made.below, before);
        }
      }
      for (const [key, made] of this.rows) {
        if (kept.has(key)) continue;
        made.node.remove();
        made.below?.remove();
        made.detail?.close?.();
      }
      this.rows = kept;
      this.region.hidden = !rows.length;
      this.empty.hidden = Boolean(rows.length);
      if (this.legendNode) this.legendNode.hidden = !rows.length;
      const left = rows.length - shown.length;
      this.more.hidden = left <= 0;
      if (left > 0) {
        setText(this.moreText, `${count(left)} more ${this.of} ${this.sorted === null && this.worst ? "with less to see" : "in this order"}.`);
        setText(this.moreButton, `Show ${count(Math.min(left, MORE_ROWS))} more`);
      }
    }

    order(rows) {
      if (this.sorted === null) {
        if (!this.worst) return rows;
        return keyed(rows, this.worst, true);
      }
      const column = this.columns[this.sorted];
      return keyed(rows, column.value ?? column.text, this.descending);
    }

    /* Put a row behind another one; nothing moves if it is there. */
    place(node, before) {
      const next = before === null ? this.body.firstChild : before.nextSibling;
      if (next !== node) this.body.insertBefore(node, next);
      return node;
    }

    row(key) {
      const made = { node: el("tr"), cells: [], below: null, detail: null };
      this.columns.forEach((column, index) => {
        const cell = el(index === 0 ? "th" : "td", { className: column.kind ?? "" });
        if (index === 0) cell.scope = "row";
        const text = el(column.link ? "a" : column.value && column.kind === "num" ? "data" : "span");
        let holder = text;
        if (index === 0 && this.detail) {
          holder = el("button", { type: "button", className: "open", ariaExpanded: "false" }, text);
          holder.addEventListener("click", () => this.toggle(made, holder));
        }
        cell.append(holder);
        const bar = column.bar ? new Bar() : null;
        if (bar) cell.append(bar.node);
        made.node.append(cell);
        made.cells.push({ text, bar });
      });
      return made;
    }

    fill(made, row) {
      made.last = row;
      this.columns.forEach((column, index) => {
        const { text, bar } = made.cells[index];
        setText(text, column.text(row));
        if (column.value && text.tagName === "DATA") {
          const exact = String(column.value(row) ?? "");
          if (text.value !== exact) {
            text.value = exact;
            text.title = column.unit ? `${exact} ${column.unit}` : exact;
          }
        }
        if (bar) bar.update(column.bar(row), column.warns?.(row) ?? true);
        if (column.link) setLink(text, column.link(row));
      });
    }

    toggle(made, button) {
      const opens = made.below === null;
      button.ariaExpanded = String(opens);
      if (opens) {
        const cell = el("td", { colSpan: this.columns.length });
        made.below = el("tr", { className: "detail" }, cell);
        made.detail = this.detail(cell);
        made.detail.update(made.last);
        made.node.after(made.below);
      } else {
        made.below.remove();
        made.detail.close?.();
        made.below = made.detail = null;
      }
    }
  }

  /* Sort rows by a value that is computed once for each. */
  function keyed(rows, value, descending) {
    const sign = descending ? -1 : 1;
    const pairs = rows.map((row, index) => [value(row), index]);
    pairs.sort(([a, i], [b, j]) => {
      if (a === b) return i - j;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      return (a < b ? -1 : 1) * sign;
    });
    return pairs.map(([, index]) => rows[index]);
  }

  // ---- charts --------------------------------------------------------------------------------

  class Chart {
    constructor(parent, name, meaning, text, least) {
      this.text = text;
      this.least = least; // the top of the chart is at least this
      this.points = [];
      this.value = el("span", { className: "value" }, "–");
      this.most = el("span", { className: "most" });
      this.line = svg("polyline", { class: "line" });
      this.area = svg("polygon", { class: "area" });
      this.title = svg("title");
      this.title.textContent = `${name}: no numbers yet`;
      this.drawing = svg("svg", { class: "chart", viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img" });
      this.drawing.append(this.title, this.area, this.line);
      this.name = name;
      parent.append(el("figure", { title: meaning }, el("figcaption", {}, name), this.value, this.most, this.drawing));
    }

    add(at, value) {
      if (value === null || !Number.isFinite(value)) return;
      this.points.push([at, value]);
      while (this.points.length && this.points[0][0] < at - HISTORY_SECONDS) this.points.shift();
    }

    draw(now) {
      if (!this.points.length) return;
      const last = this.points.at(-1)[1];
      let top = this.least;
      let most = 0;
      for (const [, value] of this.points) most = Math.max(most, value);
      top = Math.max(top, most);
      const x = (at) => (300 * (1 - (now - at) / HISTORY_SECONDS)).toFixed(1);
      const spots = this.points.map(([at, value]) => `${x(at)},${(58 - (56 * value) / top).toFixed(1)}`);
      const drawn = spots.join(" ");
      this.line.setAttribute("points", drawn);
      this.area.setAttribute("points", `${x(this.points[0][0])},60 ${drawn} ${x(this.points.at(-1)[0])},60`);
      setText(this.value, this.text(last));
      setText(this.most, `at most ${this.text(most)}`);
      setText(this.title, `${this.name}: ${this.text(last)} now, at most ${this.text(most)} in five minutes`);
    }
  }

  // ---- what waits for what -------------------------------------------------------------------

  /* Return what identifies a waiter or a resource: names are those of one data process. */
  const partyKey = (party, wait) => `${wait.taskmanager_id ?? ""} ${party.kind} ${party.name} ${party.application_id ?? ""}`;

  /* Return a waiter or a resource in words, with its kind unless its name says it.
   *
   * `known` is an application that need not be named again.
   */
  function partyWords(party, known = "") {
    const kind = party.kind.replaceAll("_", " ");
    const words = party.name.includes(kind) ? party.name : `${kind} ${party.name}`.trim();
    const owner = party.application_id ?? "";
    return owner && owner !== known && !words.includes(owner) ? `${words} (${owner})` : words;
  }

  const waitWords = (wait) => `${partyWords(wait.waiter)} waits for ${partyWords(wait.resource, wait.waiter.application_id)}`;

  /* Group waits by what waits, and follow what they wait for.
   *
   * Returns trees of {key, head, text, seconds, remedy, children}, the longest wait first. A circle
   * ends where it closes, and what a resource waits for is shown once, where the resource occurs
   * first. A waiter that nothing waits for is at the top.
   */
  function waitTrees(waits) {
    const byWaiter = new Map();
    const resources = new Set();
    for (const wait of waits) {
      const key = partyKey(wait.waiter, wait);
      if (!byWaiter.has(key)) byWaiter.set(key, []);
      byWaiter.get(key).push(wait);
      resources.add(partyKey(wait.resource, wait));
    }
    const seen = new Set();
    const expanded = new Set();
    const grow = (wait, path) => {
      const key = partyKey(wait.resource, wait);
      seen.add(partyKey(wait.waiter, wait));
      const ends = path.has(key) || path.size >= MAX_DEPTH || expanded.has(key);
      const next = ends ? [] : (byWaiter.get(key) ?? []);
      expanded.add(key);
      const longer = new Set(path).add(key);
      return {
        key: `${partyKey(wait.waiter, wait)} > ${key} ${wait.remedy}`,
        head: waitWords(wait),
        text: wait.text ?? "",
        seconds: wait.seconds ?? null,
        remedy: wait.remedy ?? "",
        children: next.map((each) => grow(each, longer)).sort(longest),
      };
    };
    const longest = (a, b) => (b.seconds ?? -1) - (a.seconds ?? -1);
    const trees = [];
    const plant = (key) => {
      for (const wait of byWaiter.get(key)) trees.push(grow(wait, new Set([key])));
    };
    for (const key of byWaiter.keys()) if (!resources.has(key)) plant(key);
    for (const key of byWaiter.keys()) if (!seen.has(key)) plant(key); // circles have no top
    return trees.sort(longest);
  }

  class Tree {
    constructor(parent) {
      this.root = el("ul", { className: "tree" });
      this.empty = el("p", { className: "empty" }, "Nothing waits.");
      this.more = el("p", { className: "more", hidden: true });
      parent.append(this.empty, this.root, this.more);
    }

    update(waits, omitted) {
      const trees = waitTrees(waits);
      this.fill(this.root, trees.slice(0, MAX_WAITS));
      this.empty.hidden = Boolean(trees.length);
      const left = Math.max(0, trees.length - MAX_WAITS) + omitted;
      this.more.hidden = left === 0;
      setText(this.more, `${count(left)} more are not shown: shorter ones, and those whose time is not known.`);
    }

    fill(list, nodes) {
      const old = new Map([...list.children].map((item) => [item.key, item]));
      let before = null;
      for (const node of nodes) {
        let item = old.get(node.key);
        if (item) old.delete(node.key);
        else item = this.item(node.key);
        setText(item.parts.head, node.head);
        setText(item.parts.text, node.text && `${node.text}.`.replace(/([.!?])\.$/, "$1"));
        setText(item.parts.seconds, node.seconds === null ? "" : seconds(node.seconds));
        setText(item.parts.remedy, node.remedy);
        this.fill(item.parts.list, node.children);
        const next = before === null ? list.firstChild : before.nextSibling;
        if (next !== item) list.insertBefore(item, next);
        before = item;
      }
      for (const item of old.values()) item.remove();
    }

    item(key) {
      const parts = {
        head: el("b"),
        text: el("span", { className: "text" }),
        seconds: el("span", { className: "seconds", title: "how long it has waited" }),
        remedy: el("span", { className: "remedy" }),
        list: el("ul"),
      };
      const item = el("li", {}, parts.head, parts.seconds, parts.text, parts.remedy, parts.list);
      item.key = key;
      item.parts = parts;
      return item;
    }
  }

  class Notices {
    constructor(parent, empty) {
      this.list = el("ul", { className: "notices" });
      this.empty = el("p", { className: "empty" }, empty);
      parent.append(this.empty, this.list);
      this.shown = "";
    }

    update(notices) {
      const now = JSON.stringify(notices);
      if (now === this.shown) return;
      this.shown = now;
      this.empty.hidden = Boolean(notices.length);
      this.list.replaceChildren(
        ...notices.map((each) =>
          el(
            "li",
            { className: each.severity },
            el("b", {}, each.severity),
            `: ${each.text}`,
            el("span", { className: "remedy" }, each.remedy),
          ),
        ),
      );
    }
  }

  class Facts {
    constructor(node) {
      this.node = node;
      this.values = new Map();
    }

    update(facts) {
      for (const [name, text, meaning] of facts) {
        let value = this.values.get(name);
        if (!value) {
          value = el("dd");
          this.values.set(name, value);
          this.node.append(el("div", { title: meaning }, el("dt", {}, name), value));
        }
        setText(value, text);
      }
    }
  }

  // ---- the connection to the TaskManager -----------------------------------------------------

  // Several TaskManagers may share an origin, each below its own prefix.
  const TOKEN_KEY = `sluice token ${new URL(".", location.href).pathname}`;

  function showProblem(text) {
    const node = $("problem");
    setText(node, text);
    node.hidden = !text;
  }

  /* Reads from the TaskManager while the page is visible, and asks for a token where one is needed. */
  class Source {
    constructor(read) {
      this.read = read; // reads until it fails or ends
      this.failures = 0;
      this.abort = null;
      this.timer = 0;
      this.lastAt = 0;
      $("token").addEventListener("submit", (event) => {
        event.preventDefault();
        sessionStorage.setItem(TOKEN_KEY, $("token-text").value.trim());
        $("token-text").value = "";
        $("token").hidden = true;
        this.start();
      });
      document.addEventListener("visibilitychange", () => (document.hidden ? this.stop("Paused") : this.start()));
      setInterval(() => this.age(), 1000);
    }

    start() {
      this.stop("Connecting");
      if (document.hidden || !$("token").hidden) return;
      const abort = new AbortController();
      this.abort = abort;
      this.read(this, abort.signal).then(
        () => this.retry(abort, null),
        (error) => this.retry(abort, error),
      );
    }

    stop(state) {
      clearTimeout(this.timer);
      this.abort?.abort();
      this.abort = null;
      if (state) setText($("live"), state);
    }

    retry(abort, error) {
      if (abort !== this.abort) return; // it was stopped
      this.abort = null;
      if (error instanceof NeedsToken) return;
      const wait = RETRY_SECONDS[Math.min(this.failures, RETRY_SECONDS.length - 1)];
      if (error) {
        this.failures += 1;
        showProblem(`${error.message}. Trying again every ${wait} s.`);
      }
      this.timer = setTimeout(() => this.start(), 1000 * wait);
    }

    /* Record that numbers have come. */
    arrived() {
      this.failures = 0;
      this.lastAt = performance.now();
      showProblem("");
      $("content").hidden = false;
      setText($("live"), "Live");
    }

    age() {
      if (!this.abort || !this.lastAt) return;
      const age = (performance.now() - this.lastAt) / 1000;
      if (age > STALE_SECONDS) setText($("live"), `No news for ${Math.round(age)} s`);
    }

    async get(path, signal) {
      const token = sessionStorage.getItem(TOKEN_KEY);
      const headers = token ? { Authorization: `Bearer ${token}` } : {};
      let answer;
      try {
        answer = await fetch(path, { headers, signal, cache: "no-store" });
      } catch (error) {
        if (signal.aborted) throw error;
        throw new Error("The TaskManager does not answer");
      }
      if (answer.ok) return answer;
      let reason = `The TaskManager answered ${answer.status}`;
      try {
        reason = (await answer.json()).error ?? reason;
      } catch {
        // not JSON: a proxy answered
      }
      if (answer.status === 401 || (answer.status === 403 && answer.headers.has("WWW-Authenticate"))) {
        this.askForToken(token ? reason : "");
        throw new NeedsToken(reason);
      }
      const failed = new Error(reason);
      failed.status = answer.status;
      throw failed;
    }

    askForToken(reason) {
      sessionStorage.removeItem(TOKEN_KEY);
      $("content").hidden = true;
      showProblem("");
      setText($("token-problem"), reason);
      setText($("live"), "");
      $("token").hidden = false;
      $("token-text").focus();
    }
  }

  class NeedsToken extends Error {}

  /* Return what reads events; calls show(status) with the newest of those that came together. */
  function eventReader(show) {
    return async (source, signal) => {
      let answer;
      try {
        answer = await source.get("api/v1/events", signal);
      } catch (error) {
        if (error.status !== 503) throw error;
        // All streams are in use, or the data path is silent: the status itself shows it.
        show(await (await source.get("api/v1/status", signal)).json());
        source.arrived();
        await pause(WITHOUT_STREAM_SECONDS, signal);
        return;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        const from = Math.max(0, text.length - 1);
        text += value;
        const end = text.indexOf("\n\n", from) < 0 ? -1 : text.lastIndexOf("\n\n");
        if (end < 0) continue;
        const events = text.slice(0, end).split("\n\n").map(parseEvent);
        text = text.slice(end + 2);
        const last = events.filter((each) => each.kind !== "").at(-1);
        if (last?.kind === "silent") {
          showProblem(`The data path does not answer: ${JSON.parse(last.data).error}`);
          continue;
        }
        source.arrived();
        if (last?.kind === "status") show(JSON.parse(last.data));
      }
    };
  }

  function parseEvent(block) {
    const event = { kind: "", data: "" };
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) event.kind = line.slice(7);
      else if (line.startsWith("data: ")) event.data = line.slice(6);
    }
    return event;
  }

  function pause(time, signal) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, 1000 * time);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  /* Return what asks for the cluster at intervals. */
  function clusterReader(show) {
    return async (source, signal) => {
      while (!signal.aborted) {
        show(await (await source.get("api/v1/cluster", signal)).json());
        source.arrived();
        await pause(CLUSTER_SECONDS, signal);
      }
    };
  }

  // ---- the page of a TaskManager -------------------------------------------------------------

  const STATES = { ready: "good", draining: "warning", starting: "", stopped: "error" };

  function showState(state, text = state) {
    setClass($("state"), `pill ${STATES[state] ?? "error"}`);
    setText($("state"), text);
  }

  const of = (held, limit) => (limit ? held / limit : 0);
  const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);

  /* Give rows keys of their own: a name may occur twice. */
  function withKeys(rows, key) {
    const seen = new Map();
    return rows.map((row) => {
      const name = key(row);
      const number = seen.get(name) ?? 0;
      seen.set(name, number + 1);
      return { ...row, key: number ? `${name} #${number}` : name };
    });
  }

  /* Computes rates: the difference of a growing number of two snapshots, over their time. */
  class Rates {
    constructor() {
      this.before = new Map();
      this.now = new Map();
      this.at = null;
      this.passed = 0;
    }

    begin(at) {
      this.passed = this.at === null ? 0 : at - this.at;
      if (this.passed < 0) this.now = new Map(); // the TaskManager was started again
      this.at = at;
      this.before = this.now;
      this.now = new Map();
    }

    of(key, total) {
      this.now.set(key, total);
      const before = this.before.get(key);
      if (before === undefined || this.passed <= 0 || total < before) return null;
      return (total - before) / this.passed;
    }
  }

  function taskManagerPage() {
    const rates = new Rates();
    const facts = new Facts($("facts"));
    const warnings = new Notices($("warnings"), "No warnings.");
    const waits = new Tree($("waits"));
    const views = [storageView(), memoryView(), applicationsView(), shufflesView(), gatesView(rates), pipelinedView(), flowView(), peersView(rates), poolsView(), copiesView(), processesView(), refusalsView()];
    const charts = chartsView(rates);
    let filter = new URLSearchParams(location.hash.slice(1)).get("application") ?? "";
    let last = null;
    let lastUptime = -1;
    $("filter-text").value = filter;
    $("filter").addEventListener("submit", (event) => event.preventDefault());
    $("filter-text").addEventListener("input", (event) => {
      filter = event.target.value;
      if (last) render(last);
    });

    function show(status) {
      if (status.uptime_seconds !== lastUptime) {
        rates.begin(status.uptime_seconds);
        lastUptime = status.uptime_seconds;
        status.derived = derive(status, rates);
        charts(status);
      } else status.derived = last.derived;
      last = status;
      render(status);
    }

    function render(status) {
      setText($("name"), status.taskmanager_id);
      document.title = `${status.taskmanager_id} – Sluice`;
      showState(status.state);
      facts.update(taskManagerFacts(status));
      warnings.update(status.warnings ?? []);
      waits.update((status.waits ?? []).filter((wait) => matches(filter, wait.waiter.application_id) || matches(filter, wait.resource.application_id)), status.waits_omitted ?? 0);
      const keeps = (row) => matches(filter, row.application_id);
      for (const view of views) view(status, keeps);
    }

    return show;
  }

  const matches = (filter, name) => !filter || (name ?? "").toLowerCase().includes(filter.toLowerCase());

  /* Compute, once for a snapshot, what several views show of gates and connections. */
  function derive(status, rates) {
    const gates = withKeys(status.gates, (gate) => `${gate.connection} ${gate.gate_id}`).map((gate) => {
      let [credit, backlog, queued, bytesIn] = [0, 0, 0, 0];
      for (const channel of gate.channels) {
        credit += channel.available_credit;
        backlog += channel.backlog_buffers;
        queued += channel.queued_buffers;
        bytesIn += channel.bytes_in;
      }
      const pressed = rates.of(`pressed ${gate.key}`, gate.back_pressured_seconds);
      const idle = rates.of(`idle ${gate.key}`, gate.idle_seconds);
      return { ...gate, credit, backlog, queued, bytesIn, pressed, idle, rate: rates.of(`gate ${gate.key}`, bytesIn) };
    });
    const peers = new Map();
    for (const each of status.connections) {
      const key = `${each.leg} ${each.remote}`;
      const peer = peers.get(key) ?? { key, remote: each.remote, leg: each.leg, flow_control: each.flow_control, connections: 0, channels: 0, bytes_in: 0, bytes_out: 0, unsent: 0, unwritable: 0 };
      peer.connections += 1;
      peer.channels += each.channels;
      peer.bytes_in += each.bytes_in;
      peer.bytes_out += each.bytes_out;
      peer.unsent += each.write_buffer_bytes;
      peer.unwritable += each.writable ? 0 : 1;
      peers.set(key, peer);
    }
    for (const peer of peers.values()) {
      peer.inRate = rates.of(`in ${peer.key}`, peer.bytes_in);
      peer.outRate = rates.of(`out ${peer.key}`, peer.bytes_out);
    }
    return { gates, peers: [...peers.values()] };
  }

  const SERVES = { authenticated: "applications with a credential", "this host": "this host only", anonymous: "anybody" };

  function taskManagerFacts(status) {
    const facts = [
      ["Address", status.address, "Where others reach the data port"],
      ["Up", seconds(status.uptime_seconds), "Time since the daemon started"],
      ["Version", `${status.version}, ${status.data_path}`, "The version, and whether the data path is compiled"],
      ["Serves", SERVES[status.serves] ?? "–", "Whose connections are accepted"],
      ["CPU", seconds(status.cpu_seconds), "CPU time of the process since it started"],
      ["Event loop", `at most ${seconds(status.event_loop.max_lag_seconds)} late`, "The worst lag of the event loop in the last minute"],
    ];
    if (status.socket_path) facts.splice(1, 0, ["Socket", status.socket_path, "The Unix socket of the data port"]);
    if (status.tls_certificate_expires_at) {
      const expires = new Date(1000 * status.tls_certificate_expires_at);
      facts.push(["Certificate until", expires.toISOString().slice(0, 10), "The day on which the TLS certificate expires"]);
    }
    return facts;
  }

  function chartsView(rates) {
    const holder = el("div", { className: "charts" });
    const legs = el("dl", { className: "facts" });
    $("now").append(holder, legs);
    const traffic = new Facts(legs);
    const chart = (...given) => new Chart(holder, ...given);
    const charts = {
      in: chart("Data in", "Bytes per second from map tasks and from other TaskManagers", perSecond, 1024),
      out: chart("Data out", "Bytes per second to reduce tasks and to other TaskManagers", perSecond, 1024),
      commits: chart("Commits", "Map outputs committed per second", (value) => `${value.toFixed(1)}/s`, 1),
      producers: chart("Producers back-pressured", "Share of the open map outputs and pipelined partitions whose producer waits for credit", percent, 0.05),
      channels: chart("Channels without credit", "Share of the channels read here that have data and no credit", percent, 0.05),
      gates: chart("Gates back-pressured", "Mean share of time in which gates had data that their readers did not take", percent, 0.05),
      memory: chart("Network memory in use", "Share of the segments that are not free", percent, 0.05),
      lag: chart("Event loop late by", "The lag of the event loop", seconds, 0.01),
    };
    let remembered = false;

    /* Draw what the TaskManager remembers of the time before the page was opened. */
    function remember(samples, total, now) {
      for (const sample of samples) {
        const at = now - sample.age_seconds;
        charts.in.add(at, sample.bytes_in / sample.seconds);
        charts.out.add(at, sample.bytes_out / sample.seconds);
        charts.commits.add(at, sample.commits / sample.seconds);
        charts.producers.add(at, Math.min(1, of(sample.producer_wait_seconds, sample.producer_seconds)));
        charts.channels.add(at, of(sample.channels_waiting_for_credit, sample.channels));
        charts.memory.add(at, of(sample.drawn_segments, total));
        charts.lag.add(at, sample.max_lag_seconds);
      }
    }

    return (status) => {
      const now = performance.now() / 1000;
      const { counters, network_pool: pool, served_channels: served } = status;
      const { gates } = status.derived;
      if (!remembered) {
        remembered = true;
        remember(status.recent ?? [], pool.total_segments, now);
      }
      const rate = (field) => rates.of(field, counters[field]);
      const written = rate("producer_bytes_in");
      const local = rate("consumer_bytes_out_local");
      const remote = rate("consumer_bytes_out_remote");
      const fromPeers = rate("peer_bytes_in");
      const toPeers = rate("peer_bytes_out");
      if (written !== null) {
        charts.in.add(now, written + fromPeers);
        charts.out.add(now, local + remote + toPeers);
      }
      charts.commits.add(now, rate("map_outputs_committed"));
      const open = sum(status.partitions, (each) => each.open_map_outputs) + status.pipelined_partitions.length;
      charts.producers.add(now, Math.min(1, of(sum(status.producers, (each) => each.without_credit), open)));
      const waiting = sum(served, (each) => each.waiting_for_credit);
      charts.channels.add(now, of(waiting, waiting + sum(served, (each) => each.sending + each.waiting_for_data)));
      const known = gates.filter((gate) => gate.pressed !== null);
      charts.gates.add(now, known.length ? Math.min(1, sum(known, (gate) => gate.pressed) / known.length) : 0);
      charts.memory.add(now, of(pool.total_segments - pool.available_segments, pool.total_segments));
      charts.lag.add(now, status.event_loop.last_lag_seconds);
      for (const each of Object.values(charts)) each.draw(now);
      traffic.update([
        ["From map tasks", perSecond(written), "Region data received from map tasks"],
        ["To reduce tasks", perSecond(local), "Sent out of this TaskManager's own store"],
        ["To reduce tasks, relayed", perSecond(remote), "Sent to reduce tasks after it came from another TaskManager"],
        ["From other TaskManagers", perSecond(fromPeers), "Received into input gates"],
        ["To other TaskManagers", perSecond(toPeers), "Sent in answer to their partition requests"],
      ]);
    };
  }

  const bytesColumn = (head, meaning, value) => ({ head, meaning, kind: "num", unit: "bytes", value, text: (row) => bytes(value(row)) });
  const countColumn = (head, meaning, value, unit = "") => ({ head, meaning, kind: "num", unit, value, text: (row) => count(value(row)) });
  const rateColumn = (head, meaning, value) => ({ head, meaning, kind: "num", unit: "bytes per second", value, text: (row) => perSecond(value(row)) });
  const nameColumn = (head, meaning, text) => ({ head, meaning, kind: "name", text });
  const longColumn = (...given) => ({ ...nameColumn(...given), kind: "name long" });
  const APPLICATION = longColumn("Application", "The name of the Spark application or program", (row) => row.application_id);
  const SHUFFLE = countColumn("Shuffle", "The number of the shuffle in its application", (row) => row.shuffle_id);

  function storageView() {
    const table = new Table($("storage"), {
      caption: "Storage tiers and disks",
      of: "storage tiers",
      key: (row) => row.key,
      columns: [
        nameColumn("Tier", "memory, disk or remote", (row) => row.tier),
        longColumn("Directory", "Where the tier keeps its files", (row) => row.directory),
        {
          head: "Used",
          meaning: "Share of what the tier can hold that regions take",
          kind: "num",
          unit: "bytes",
          value: (row) => row.used_bytes,
          text: (row) => `${bytes(row.used_bytes)} (${percent(of(row.used_bytes, row.used_bytes + row.free_bytes))})`,
          bar: (row) => [of(row.used_bytes, row.used_bytes + row.free_bytes)],
          warns: (row) => row.tier === "disk", // a full memory tier sends regions to the disks
        },
        bytesColumn("Free", "Bytes that new regions can get", (row) => row.free_bytes),
        {
          head: "Capacity",
          meaning: "Most bytes that may be used; the disk's where none is set",
          kind: "num",
          unit: "bytes",
          value: (row) => row.capacity_bytes,
          text: (row) => (row.capacity_bytes === null ? "as the disk" : bytes(row.capacity_bytes)),
        },
        countColumn("Regions", "Regions in it, including those being written", (row) => row.extents),
        { head: "Health", meaning: "Whether it accepts data, and why not", kind: "words", text: (row) => (row.healthy ? row.reason || "healthy" : `out of use: ${row.reason}`) },
      ],
    });
    return (status) => table.update(withKeys(status.storage, (row) => `${row.tier} ${row.directory}`));
  }

  function memoryView() {
    const bar = new Bar(true);
    const facts = el("dl", { className: "facts" });
    $("memory").append(bar.node, facts);
    const shown = new Facts(facts);
    return (status) => {
      const { network_pool: pool, control_memory: control, region_areas: areas } = status;
      const segments = (number) => `${count(number)} (${bytes(number * pool.segment_size_bytes)})`;
      bar.update([of(pool.lent_segments, pool.total_segments), of(pool.in_flight_segments, pool.total_segments)]);
      shown.update([
        ["Segments", segments(pool.total_segments), "All segments of the network buffer pool; a segment is one buffer"],
        ["Free", segments(pool.available_segments), "Segments that nobody uses"],
        ["Lent", segments(pool.lent_segments), "Segments that gates, writers and reads hold"],
        ["In flight", segments(pool.in_flight_segments), "Segments that a transport is still sending"],
        ["Wanted", count(pool.wanted_segments), "Segments that all pools and requests could use"],
        ["Waiting requests", count(pool.waiting_requests), "Channels that wait for their exclusive segments"],
        ["Refused since the start", count(pool.refused_requests + pool.expired_requests), "Pools and requests that got no memory"],
        ["Control memory", `${bytes(control.used_bytes)} of ${bytes(control.capacity_bytes)}`, "Memory for partly received messages and unread replies"],
        ["Region areas", `${count(areas.areas)} (${bytes(areas.used_bytes)})`, "Memory shared with producers on this host"],
      ]);
    };
  }

  /* The share of its quota that an application uses; its subject's, if that is larger. */
  const quotaShare = (holding) => of(Math.max(holding.held, holding.subject_held ?? 0), holding.quota);

  function applicationsView() {
    const fullest = (row) => row.fullest;
    const table = new Table($("applications"), {
      caption: "Applications and their quotas",
      of: "applications",
      key: (row) => row.application_id,
      worst: (row) => row.share + row.stored_bytes / 2 ** 60,
      columns: [
        APPLICATION,
        countColumn("Connections", "Connections of its producers, consumers and drivers", (row) => row.connections),
        bytesColumn("Stored", "Bytes of its regions here", (row) => row.stored_bytes),
        { head: "Expires", meaning: "Time until its data is dropped; – while it has a connection", kind: "num", unit: "seconds", value: (row) => row.expires_in_seconds, text: (row) => seconds(row.expires_in_seconds) },
        {
          head: "Fullest quota",
          meaning: "The quota of which it, or all applications of its subject, use the largest share",
          kind: "words",
          value: (row) => row.share,
          text: (row) => (fullest(row) ? `${resourceWords(fullest(row).resource)} ${percent(row.share)}` : "no quota"),
          bar: (row) => (fullest(row) ? [row.share] : null),
        },
      ],
      detail: (cell) => {
        const inner = new Table(cell, {
          caption: "Holdings of the application",
          of: "resources",
          legend: false,
          key: (row) => row.resource,
          worst: quotaShare,
          columns: [
            nameColumn("Resource", "What is held", (row) => resourceWords(row.resource)),
            { head: "Held", meaning: "How much it holds", kind: "num", value: (row) => row.held, text: (row) => amount(row.resource, row.held) },
            { head: "By subject", meaning: "How much all applications of its subject hold", kind: "num", value: (row) => row.subject_held, text: (row) => (row.subject_held === null ? "–" : amount(row.resource, row.subject_held)) },
            { head: "Quota", meaning: "The most that may be held", kind: "num", value: (row) => row.quota, text: (row) => (row.quota === null ? "none" : amount(row.resource, row.quota)) },
            { head: "Share", meaning: "The share of the quota that is used", kind: "num", value: quotaShare, text: (row) => (row.quota === null ? "–" : percent(quotaShare(row))), bar: (row) => (row.quota === null ? null : [quotaShare(row)]) },
          ],
        });
        return { update: (row) => inner.update(row.holdings) };
      },
    });
    return (status, keeps) =>
      table.update(
        status.applications.filter(keeps).map((row) => {
          const [first] = keyed(row.holdings.filter((each) => each.quota), quotaShare, true);
          return { ...row, fullest: first, share: first ? quotaShare(first) : 0 };
        }),
      );
  }

  function shufflesView() {
    const table = new Table($("shuffles"), {
      caption: "Shuffles, their map outputs and regions",
      of: "shuffles",
      key: (row) => `${row.application_id} ${row.shuffle_id}`,
      worst: (row) => row.stored_bytes,
      columns: [
        APPLICATION,
        SHUFFLE,
        countColumn("Map outputs", "Committed map outputs held here", (row) => row.committed_map_outputs),
        countColumn("Open", "Map outputs that are being written", (row) => row.open_map_outputs),
        countColumn("Regions", "Regions that the map outputs consist of", (row) => row.regions),
        bytesColumn("Stored", "Bytes of these regions", (row) => row.stored_bytes),
      ],
      detail: (cell) => new MapOutputs(cell),
    });
    return (status, keeps) => table.update(status.partitions.filter(keeps));
  }

  /* The map outputs of a shuffle, a page at a time. Only a click asks for them, never an event. */
  class MapOutputs {
    constructor(cell) {
      this.firsts = ["0"]; // the first map attempt of each page up to this one
      this.row = null;
      this.abort = null;
      this.said = el("span", { role: "status" });
      this.problem = el("p", { className: "problem", role: "alert" });
      this.buttons = {
        previous: this.button("Previous", () => this.firsts.slice(0, -1)),
        next: this.button("Next", () => [...this.firsts, this.next]),
        reload: this.button("Reload", () => this.firsts),
      };
      this.tableAt = el("div", { hidden: true });
      cell.append(el("p", { className: "paging" }, this.said, ...Object.values(this.buttons)), this.problem, this.tableAt);
      this.table = mapOutputsTable(this.tableAt);
      this.next = null;
      this.able();
    }

    button(text, firsts) {
      const made = el("button", { type: "button" }, text);
      made.addEventListener("click", () => this.load(firsts()));
      return made;
    }

    update(row) {
      const isNew = this.row === null;
      this.row = row;
      if (isNew) this.load(this.firsts);
    }

    close() {
      this.abort?.abort();
    }

    /* Hide the buttons that lead nowhere. */
    able() {
      this.buttons.previous.hidden = this.firsts.length < 2;
      this.buttons.next.hidden = this.next === null;
    }

    async load(firsts) {
      this.close();
      const abort = new AbortController();
      this.abort = abort;
      const late = new Error(`The TaskManager has not answered for ${ANSWER_SECONDS} s`);
      const timer = setTimeout(() => abort.abort(late), 1000 * ANSWER_SECONDS);
      setText(this.said, "Asking for map outputs.");
      setText(this.problem, "");
      try {
        const { application_id, shuffle_id } = this.row;
        const path = `api/v1/shuffles/${encodeURIComponent(application_id)}/${shuffle_id}`;
        const answer = await source.get(`${path}?first=${firsts.at(-1)}&limit=${MAP_OUTPUTS}`, abort.signal);
        const page = parsePage(await answer.text());
        if (abort === this.abort) this.show(page, firsts);
      } catch (error) {
        if (abort !== this.abort || (abort.signal.aborted && abort.signal.reason !== late)) return;
        setText(this.said, "");
        setText(this.problem, `${error.message}. Reload asks again.`);
      } finally {
        clearTimeout(timer);
      }
    }

    show(page, firsts) {
      const { activeElement } = document;
      this.firsts = firsts;
      this.next = page.next;
      this.tableAt.hidden = false;
      this.table.update(page.outputs);
      this.able();
      const { outputs } = page;
      const range = outputs.length ? `Map attempts ${outputs[0].map_attempt_id} to ${outputs.at(-1).map_attempt_id}` : "No map outputs from here on";
      setText(this.said, `${range}. The shuffle has ${count(page.map_outputs)} committed map outputs here, ${bytes(page.stored_bytes)}, at ${new Date().toLocaleTimeString()}.`);
      // The focus does not get lost with its button.
      if (activeElement?.hidden && Object.values(this.buttons).includes(activeElement)) this.buttons.reload.focus();
    }
  }

  /* Return a page of map outputs, with numbers of map attempts as texts: they may have 63 bits. */
  function parsePage(text) {
    return JSON.parse(text.replace(/"(map_attempt_id|next)":\s*(\d+)/g, '"$1":"$2"'));
  }

  function mapOutputsTable(parent) {
    return new Table(parent, {
      caption: "Map outputs of the shuffle",
      of: "map outputs",
      legend: false,
      key: (row) => row.map_attempt_id,
      columns: [
        countColumn("Map attempt", "The number of the attempt; open it to see its regions", (row) => BigInt(row.map_attempt_id)),
        nameColumn("State", "committed, or secured: not committed yet, but its regions survive the process", (row) => row.state),
        countColumn("Regions", "Regions of the map output", (row) => row.regions.length + row.regions_left_out),
        bytesColumn("Bytes", "Bytes of all its regions", (row) => row.length_bytes),
        countColumn("Subpartitions", "Subpartitions of the shuffle", (row) => row.subpartitions),
        nameColumn("Tiers", "Where its regions are", (row) => [...new Set(row.regions.map(tierOf))].join(", ") || "–"),
        { ...countColumn("Copies", "TaskManagers that should keep it, this one included, and whether the remote tier should", (row) => row.replicas), text: (row) => `${count(row.replicas)}${row.to_remote ? " + remote" : ""}` },
        nameColumn("From", "The TaskManager that sent this copy; – if its producer wrote it here", (row) => row.origin || "–"),
      ],
      detail: regionsTable,
    });
  }

  const tierOf = (region) => region.tier || "empty";

  function regionsTable(cell) {
    const inner = new Table(cell, {
      caption: "Regions of the map output",
      of: "regions",
      legend: false,
      key: (row) => row.number,
      columns: [
        countColumn("Region", "Its number, in the order in which they were written", (row) => row.number),
        nameColumn("Tier", "memory, disk or remote; empty: it has no bytes", tierOf),
        longColumn("Directory", "The directory of its tier, or the URL of the remote tier", (row) => row.directory || "–"),
        bytesColumn("Bytes", "Bytes of the region", (row) => row.length_bytes),
        countColumn("Offset", "Position in the arena in bytes; in the remote tier the number of the object", (row) => row.offset),
        { ...nameColumn("Subpartitions", "The first and last subpartition of its index", subpartitionsOf), value: (row) => (row.is_broadcast ? -1 : row.first_subpartition) },
        nameColumn("CRC-32C", "The checksum over its bytes, in hexadecimal digits", (row) => row.crc32c.toString(16).padStart(8, "0")),
      ],
    });
    const left = el("p", { className: "hint" });
    cell.append(left);
    return {
      update: (row) => {
        inner.update(row.regions.map((each, number) => ({ ...each, number })));
        left.hidden = !row.regions_left_out;
        setText(left, `${count(row.regions_left_out)} more regions are left out: see sluice inspect with --limit 1.`);
      },
    };
  }

  function subpartitionsOf({ is_broadcast, first_subpartition, subpartitions }) {
    if (is_broadcast) return "all, the same bytes";
    if (!subpartitions) return "–";
    if (subpartitions === 1) return String(first_subpartition);
    return `${first_subpartition} to ${first_subpartition + subpartitions - 1}`;
  }

  /* What a gate did between the last two snapshots. */
  function activity(gate) {
    if (gate.pressed === null) return "–";
    if (gate.pressed > 0.5) return "its reader does not read";
    if (gate.idle > 0.5) return "waits for data";
    return "reads";
  }

  function gatesView() {
    const table = new Table($("gates"), {
      caption: "Input gates",
      of: "gates",
      key: (row) => row.key,
      worst: (row) => (row.pressed ?? 0) * 1e6 + row.back_pressured_seconds,
      columns: [
        countColumn("Gate", "The number of the gate; open it to see its channels", (row) => row.gate_id),
        { head: "Now", meaning: "What it did between the last two snapshots", kind: "name state", text: activity },
        APPLICATION,
        SHUFFLE,
        longColumn("Reader", "The client that reads it, by its name among the waits", (row) => row.remote),
        { head: "Back-pressured", meaning: "Share of the last second in which there was data that its reader did not take", kind: "num", unit: "of the time", value: (row) => row.pressed, text: (row) => percent(row.pressed === null ? null : Math.min(1, row.pressed)), bar: (row) => [row.pressed ?? 0] },
        { head: "In all", meaning: "Time back-pressured since it was opened", kind: "num", unit: "seconds", value: (row) => row.back_pressured_seconds, text: (row) => seconds(row.back_pressured_seconds) },
        countColumn("Channels", "Input channels, one for each source", (row) => row.channels.length),
        { head: "Exclusive", meaning: "Buffers in use of those that belong to single channels", kind: "num", unit: "buffers", value: (row) => row.exclusive_used, text: (row) => `${row.exclusive_used} of ${row.exclusive_buffers}`, bar: (row) => [of(row.exclusive_used, row.exclusive_buffers)] },
        { head: "Floating", meaning: "Buffers in use of those that all channels share", kind: "num", unit: "buffers", value: (row) => row.floating_used, text: (row) => `${row.floating_used} of ${row.floating_limit}`, bar: (row) => [of(row.floating_used, row.floating_limit)] },
        countColumn("Credit", "Buffers that sources may send now", (row) => row.credit, "buffers"),
        countColumn("Backlog", "Buffers that wait at sources", (row) => row.backlog, "buffers"),
        countColumn("Queued", "Buffers here that the reader has not taken", (row) => row.queued, "buffers"),
        rateColumn("In", "Bytes per second into its channels", (row) => row.rate),
      ],
      detail: channelsTable,
    });
    return (status, keeps) => table.update(status.derived.gates.filter(keeps));
  }

  function channelsTable(cell) {
    const inner = new Table(cell, {
      caption: "Channels of the gate",
      of: "channels",
      key: (row) => row.channel,
      worst: (row) => row.backlog_buffers + row.queued_buffers,
      columns: [
        countColumn("Channel", "The number of the channel in its gate", (row) => row.channel),
        nameColumn("Kind", "local: its source is this TaskManager; remote: another one", (row) => row.kind),
        nameColumn("Source", "The TaskManager that it reads from", (row) => row.source),
        countColumn("Queued", "Buffers here that the reader has not taken", (row) => row.queued_buffers, "buffers"),
        countColumn("Credit", "Buffers that the source may send now", (row) => row.available_credit, "buffers"),
        countColumn("Unannounced", "Free buffers that the source does not know of yet", (row) => row.unannounced_credit, "buffers"),
        countColumn("Backlog", "Buffers that wait at the source", (row) => row.backlog_buffers, "buffers"),
        bytesColumn("Received", "Bytes since the gate was opened", (row) => row.bytes_in),
        countColumn("Buffers", "Buffers since the gate was opened", (row) => row.buffers_in),
      ],
      legend: false,
    });
    return { update: (row) => inner.update(row.channels) };
  }

  function pipelinedView() {
    const table = new Table($("pipelined"), {
      caption: "Pipelined partitions",
      of: "pipelined partitions",
      key: (row) => row.key,
      worst: (row) => (row.back_pressured ? 1e9 : 0) + row.back_pressured_seconds,
      columns: [
        APPLICATION,
        SHUFFLE,
        countColumn("Attempt", "The map attempt that writes it", (row) => row.map_attempt_id),
        nameColumn("State", "open, or finished while it is still read", (row) => row.state),
        countColumn("Subpartitions", "One for each reader", (row) => row.subpartitions),
        countColumn("Queued", "Buffers and events that wait in all subpartitions", (row) => row.queued_buffers, "buffers"),
        countColumn("Longest", "Buffers and events in the longest queue", (row) => row.longest_queue, "buffers"),
        { head: "Memory", meaning: "Segments with data, of those that it may hold", kind: "num", unit: "segments", value: (row) => row.used_segments, text: (row) => `${row.used_segments} of ${row.limit_segments}`, bar: (row) => [of(row.used_segments, row.limit_segments)] },
        countColumn("Credit", "Buffers that its producer may send now", (row) => row.available_credit, "buffers"),
        { head: "Back-pressured", meaning: "Time in which its producer had no credit", kind: "num", unit: "seconds", value: (row) => row.back_pressured_seconds, text: (row) => seconds(row.back_pressured_seconds) + (row.back_pressured ? ", now" : "") },
      ],
    });
    return (status, keeps) => table.update(withKeys(status.pipelined_partitions.filter(keeps), (row) => `${row.application_id} ${row.shuffle_id} ${row.map_attempt_id}`));
  }

  const LEGS = { peer: "channels read by other TaskManagers", consumer: "channels read by reduce tasks", map_output: "producers of map outputs", pipelined: "producers of pipelined partitions" };

  function flowView() {
    const table = new Table($("flow"), {
      caption: "Flow control",
      of: "legs",
      key: (row) => row.name,
      columns: [
        longColumn("Leg", "Who sends to whom", (row) => LEGS[row.name] ?? row.name),
        { head: "Sending", meaning: "Channels that send now", kind: "num", value: (row) => row.sending, text: (row) => (row.sending === undefined ? "–" : count(row.sending)) },
        { head: "Wait for data", meaning: "Channels with credit and nothing to send", kind: "num", value: (row) => row.waiting_for_data, text: (row) => (row.waiting_for_data === undefined ? "–" : count(row.waiting_for_data)) },
        countColumn("Wait for credit", "Channels and producers with something to send and no credit", (row) => row.waiting_for_credit ?? row.without_credit),
        countColumn("Credit", "Buffers that may be sent now", (row) => row.available_credit, "buffers"),
      ],
    });
    return (status) =>
      table.update([...status.served_channels.map((row) => ({ ...row, name: row.leg })), ...status.producers.map((row) => ({ ...row, name: row.kind }))]);
  }

  function peersView() {
    const table = new Table($("peers"), {
      caption: "Connections",
      of: "connections",
      key: (row) => row.key,
      worst: (row) => row.unwritable * 2 ** 40 + (row.inRate ?? 0) + (row.outRate ?? 0),
      columns: [
        longColumn("Remote", "The other end; those of the Unix socket are one row", (row) => row.remote),
        nameColumn("Leg", "What the connection is for; peer: another TaskManager", (row) => row.leg),
        countColumn("Connections", "Open connections of this row", (row) => row.connections),
        countColumn("Channels", "Channels, or map outputs, that they serve", (row) => row.channels),
        rateColumn("In", "Bytes per second received", (row) => row.inRate),
        rateColumn("Out", "Bytes per second sent", (row) => row.outRate),
        bytesColumn("Received", "Bytes since they were opened", (row) => row.bytes_in),
        bytesColumn("Sent", "Bytes since they were opened", (row) => row.bytes_out),
        bytesColumn("Unsent", "Bytes in write buffers, which the other end has not taken", (row) => row.unsent),
        countColumn("Blocked", "Connections whose write buffer is above its limit", (row) => row.unwritable),
      ],
    });
    return (status) => table.update(status.derived.peers);
  }

  function poolsView() {
    const table = new Table($("pools"), {
      caption: "Local pools",
      of: "local pools",
      key: (row) => row.key,
      worst: (row) => row.waiting_listeners * 1e6 + row.lent_segments,
      columns: [
        longColumn("Pool", "The gate, partition or read that the pool is for", (row) => row.name),
        APPLICATION,
        { head: "Lent", meaning: "Segments that its users hold, of those that it may hold now", kind: "num", unit: "segments", value: (row) => row.lent_segments, text: (row) => `${row.lent_segments} of ${row.size_segments}`, bar: (row) => [of(row.lent_segments, row.size_segments)] },
        countColumn("Required", "Segments that it always gets", (row) => row.required_segments, "segments"),
        countColumn("Overdraft", "Segments beyond its limit", (row) => row.overdraft_segments, "segments"),
        countColumn("Full channels", "Channels that have their maximum of segments", (row) => row.full_channels),
        countColumn("Waiting", "Requests that wait for a segment", (row) => row.waiting_listeners),
      ],
    });
    return (status, keeps) => table.update(withKeys(status.pools.filter(keeps), (row) => `${row.kind} ${row.name} ${row.application_id}`));
  }

  function copiesView() {
    const list = el("dl", { className: "facts" });
    $("copies").append(list);
    const shown = new Facts(list);
    return (status) => {
      const { copies, counters, scrub } = status;
      shown.update([
        ["Missing copies", count(copies.short), "Map outputs that lack copies which this TaskManager has to make"],
        ["Missing in the remote tier", count(copies.short_of_remote), "Map outputs that lack their copy in the remote tier"],
        ["Being copied", count(copies.waiting), "Map outputs being copied or queued for it"],
        ["Copies made", `${count(counters.copies_made)} (${bytes(counters.copy_bytes_out)})`, "Copies since the start, moves included"],
        ["Failed attempts", count(counters.copies_failed), "Failed attempts to copy, since the start"],
        ["TaskManagers watched", count(copies.watched), "TaskManagers that share map outputs with this one"],
        ["Moved", count(copies.moved), "Map outputs that are read elsewhere"],
        ["Staying", copies.staying ? `${count(copies.staying)}: ${copies.reason}` : "0", "Map outputs that no other TaskManager accepts in a migration"],
        ["Verified", bytes(scrub.read_bytes), "Stored bytes that the scrub has verified since the start"],
      ]);
    };
  }

  function processesView() {
    const table = new Table($("processes"), {
      caption: "Data processes",
      of: "data processes",
      key: (row) => row.index,
      columns: [
        countColumn("Process", "Its number", (row) => row.index),
        { head: "State", meaning: "ready, or why it does not serve", kind: "words", text: (row) => (row.reason ? `${row.state} (${row.reason})` : row.state) },
        nameColumn("Address", "Its data port", (row) => row.address),
        countColumn("Restarts", "How often it was started again", (row) => row.restarts),
        { head: "Late", meaning: "The worst lag of its event loop in the last minute", kind: "num", unit: "seconds", value: (row) => row.max_lag_seconds, text: (row) => seconds(row.max_lag_seconds) },
        { head: "CPU", meaning: "CPU time since it started", kind: "num", unit: "seconds", value: (row) => row.cpu_seconds, text: (row) => seconds(row.cpu_seconds) },
        countColumn("Connections", "Open connections", (row) => row.connections),
        bytesColumn("Received", "Bytes over accepted connections since it started", (row) => row.bytes_in),
        bytesColumn("Sent", "Bytes over accepted connections since it started", (row) => row.bytes_out),
      ],
    });
    return (status) => {
      $("processes").hidden = !status.processes.length;
      table.update(status.processes);
    };
  }

  const REFUSALS = { errors_by_code: "error sent", quota_refusals: "quota", refused_connections: "connection", http_refused: "HTTP request", http_dropped: "HTTP connection", damage_reports: "damage report" };

  function refusalsView() {
    const table = new Table($("refusals"), {
      caption: "Refused and failed since the start",
      of: "refusals",
      key: (row) => `${row.kind} ${row.reason}`,
      worst: (row) => row.count,
      columns: [
        nameColumn("What", "What was refused or failed", (row) => row.kind),
        nameColumn("Reason", "The error code, resource or reason", (row) => row.reason),
        countColumn("Count", "How often since the start", (row) => row.count),
      ],
    });
    return (status) => {
      const rows = [];
      for (const [field, kind] of Object.entries(REFUSALS)) {
        for (const [reason, number] of Object.entries(status.counters[field] ?? {})) {
          if (number) rows.push({ kind, reason, count: number });
        }
      }
      table.update(rows);
    };
  }

  // ---- the page of the cluster ---------------------------------------------------------------

  const poolShare = (row) => of(row.network_pool.lent_segments + row.network_pool.in_flight_segments, row.network_pool.total_segments);
  const tierSum = (row, kind, field) => sum(row.storage.filter((tier) => tier.tier === kind), (tier) => tier[field]);

  function tierColumn(head, kind) {
    const share = (row) => of(tierSum(row, kind, "used_bytes"), tierSum(row, kind, "used_bytes") + tierSum(row, kind, "free_bytes"));
    return {
      head,
      meaning: `Bytes used in its ${kind} tier, all directories together, and their share`,
      kind: "num",
      unit: "bytes",
      value: (row) => tierSum(row, kind, "used_bytes"),
      text: (row) => (row.reason ? "–" : `${bytes(tierSum(row, kind, "used_bytes"))} (${percent(share(row))})`),
      bar: (row) => (row.reason ? null : [share(row)]),
      warns: () => kind === "disk",
    };
  }

  function clusterPage() {
    const rates = new Rates();
    const facts = new Facts($("facts"));
    const waits = new Notices($("waits"), "No member reports a wait.");
    const warnings = new Notices($("warnings"), "No warnings.");
    const unless = (text) => (row) => (row.reason ? "–" : text(row));
    const number = (head, meaning, value, text = count) => ({ head, meaning, kind: "num", value, text: unless((row) => text(value(row))) });
    const members = new Table($("members"), {
      caption: "Members of the cluster",
      of: "members",
      key: (row) => row.key,
      worst: (row) => (row.reason ? 1e9 : 0) + row.warnings.length * 1e3 + row.waits,
      columns: [
        { ...longColumn("Member", "The id of the TaskManager, or its URL while it does not answer; a link to its own page", (row) => row.taskmanager_id || row.url), link: (row) => (row.url ? `${row.url}/` : "") },
        { head: "State", meaning: "Its state, or why it has not answered", kind: "words", text: (row) => row.reason || row.state },
        number("Up", "Time since it started", (row) => row.uptime_seconds, seconds),
        { head: "Node", meaning: "The machine on which it runs, and its zone if that is known", text: unless((row) => [row.node, row.zone].filter(Boolean).join(", ")) },
        { ...tierColumn("Memory", "memory") },
        { ...tierColumn("Disk", "disk") },
        { head: "Segments", meaning: "Share of its network memory that is lent or in flight", kind: "num", unit: "of the segments", value: poolShare, text: unless((row) => percent(poolShare(row))), bar: (row) => (row.reason ? null : [poolShare(row)]) },
        { ...rateColumn("In", "Bytes per second over accepted connections", (row) => row.inRate) },
        { ...rateColumn("Out", "Bytes per second over accepted connections", (row) => row.outRate) },
        number("Applications", "Applications with data or connections there", (row) => row.applications),
        number("Gates", "Open input gates", (row) => row.gates),
        number("Waits", "What waits there now", (row) => row.waits),
        number("Missing copies", "Map outputs that lack copies which it has to make", (row) => row.copies.short),
        number("Warnings", "Its warnings, which stand below", (row) => row.warnings.length),
      ],
    });

    return (cluster) => {
      rates.begin(performance.now() / 1000);
      const rows = withKeys(cluster.members, (row) => row.taskmanager_id || row.url).map((row) => ({
        ...row,
        inRate: row.reason ? null : rates.of(`in ${row.key}`, row.bytes_in),
        outRate: row.reason ? null : rates.of(`out ${row.key}`, row.bytes_out),
      }));
      const answering = rows.filter((row) => !row.reason);
      showState(answering.length === rows.length ? "ready" : "stopped", `${answering.length} of ${rows.length} answer`);
      facts.update([
        ["In", perSecond(total(answering, "inRate")), "Bytes per second into all members, those between members included"],
        ["Out", perSecond(total(answering, "outRate")), "Bytes per second out of all members"],
        ["Stored in memory", bytes(sum(answering, (row) => tierSum(row, "memory", "used_bytes"))), "Bytes in the memory tiers of all members"],
        ["Stored on disk", bytes(sum(answering, (row) => tierSum(row, "disk", "used_bytes"))), "Bytes on the disks of all members"],
        ["Gates", count(sum(answering, (row) => row.gates)), "Open input gates of all members"],
        ["Missing copies", count(sum(answering, (row) => row.copies.short)), "Map outputs that lack copies"],
        ["Not asked", count(cluster.not_asked), "Members beyond the limit of this page"],
      ]);
      members.update(rows);
      const named = (row, each) => ({ ...each, text: `${row.taskmanager_id}: ${each.text}` });
      const silent = rows.filter((row) => row.reason).map((row) => ({ severity: "error", text: `${row.url} has not answered: ${row.reason}.`, remedy: "Check that it runs, and that its HTTP port is reachable from here." }));
      const found = answering.flatMap((row) => row.warnings.map((each) => named(row, each)));
      const ordered = keyed([...silent, ...found], (each) => ["error", "warning", "note"].indexOf(each.severity), false);
      warnings.update(ordered.slice(0, 2 * ROWS));
      const waiting = keyed(answering.filter((row) => row.longest_wait), (row) => row.longest_wait.seconds ?? 0, true);
      waits.update(waiting.slice(0, ROWS).map((row) => ({ severity: "note", text: `${row.taskmanager_id}: ${waitWords(row.longest_wait)} (${seconds(row.longest_wait.seconds)}). ${row.longest_wait.text}`, remedy: row.longest_wait.remedy })));
    };

    function total(rows, field) {
      const known = rows.filter((row) => row[field] !== null);
      return known.length ? sum(known, (row) => row[field]) : null;
    }
  }

  // ---- start ---------------------------------------------------------------------------------

  const read = document.body.dataset.page === "cluster" ? clusterReader(clusterPage()) : eventReader(taskManagerPage());
  // Views ask it for what somebody opens, which happens after this line.
  const source = new Source(read);
  source.start();
})();
