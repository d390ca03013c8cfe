// Keeps a page up to date: pieces come by a stream that all tabs share, or where that can't be had by asking again and again.
"use strict";
(() => {
  const topic = document.body.dataset.topic;
  const link = document.getElementById("link");
  const say = (text, lost) => {
    if (!link || link.textContent === text) return;
    link.textContent = text;
    link.classList.toggle("lost", lost);
  };

  const hiddenKinds = new Set();
  const filterEvents = () => {
    for (const row of document.querySelectorAll("[data-event]")) row.hidden = hiddenKinds.has(row.dataset.event);
  };

  // Pages show UTC; a time's tooltip shows the browser's own time.
  const tellTimes = (place) => {
    for (const one of place.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      if (!isNaN(at)) one.title = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
    }
  };

  const apply = (pieces) => {
    for (const [id, html] of Object.entries(pieces)) {
      const place = document.getElementById(id);
      if (!place) continue;
      // Focus, selection, open parts and scrolling stay as they are.
      const focused = place.contains(document.activeElement) ? document.activeElement : null;
      if (focused && focused.matches("input:not([type=checkbox]), select, textarea")) continue;
      const focusedId = focused && focused.id;
      const marked = [...place.querySelectorAll("input:checked")].map((one) => one.id);
      const open = [...place.querySelectorAll("details")].map((one) => one.open);
      const inner = place.matches(".picture") ? place : place.querySelector(".scroll, .log");
      const at = inner && [inner.scrollLeft, inner.scrollTop, inner.scrollTop + inner.clientHeight >= inner.scrollHeight - 4];
      place.innerHTML = html;
      tellTimes(place);
      for (const one of marked) {
        const box = one && document.getElementById(one);
        if (box) box.checked = true;
      }
      place.querySelectorAll("details").forEach((one, index) => { one.open = Boolean(open[index]); });
      const now = place.matches(".picture") ? place : place.querySelector(".scroll, .log");
      if (now && at) {
        now.scrollLeft = at[0];
        // A log that was read at its end is followed.
        now.scrollTop = now.classList.contains("log") && at[2] ? now.scrollHeight : at[1];
      }
      if (focusedId) document.getElementById(focusedId)?.focus();
    }
    filterEvents();
    document.body.dataset.updates = String(1 + Number(document.body.dataset.updates || 0));
  };

  const take = (message) => {
    if (message.topic !== topic) return;
    apply(message.pieces);
    say("live", false);
  };

  // A run that has ended says what there is without its console.
  const lost = () => {
    const ended = document.querySelector("[data-lost]");
    say(ended ? ended.dataset.lost : "the console does not answer; this is what it showed last", !ended);
  };
  const once = async () => {
    try {
      const answer = await fetch("/pieces?topic=" + encodeURIComponent(topic));
      if (!answer.ok) throw new Error(String(answer.status));
      (await answer.json()).forEach(take);
    } catch {
      lost();
    }
  };
  let asking = null;
  const ask = () => {
    if (asking) return;
    asking = setInterval(once, 3000);
    once();
  };
  const quiet = () => { if (asking) { clearInterval(asking); asking = null; } };

  const alone = () => {
    // A seventh stream of a browser would wait forever.
    const stream = new EventSource("/stream?topic=" + encodeURIComponent(topic));
    const patience = setTimeout(() => { stream.close(); ask(); }, 5000);
    stream.onmessage = (event) => { clearTimeout(patience); quiet(); take(JSON.parse(event.data)); };
    stream.onerror = () => {
      lost();
      if (stream.readyState === EventSource.CLOSED) { clearTimeout(patience); ask(); }
    };
    addEventListener("pagehide", () => stream.close());
  };

  const shared = () => {
    const worker = new SharedWorker("/assets/worker.js");
    let heard = false;
    worker.port.onmessage = ({ data }) => {
      if (data.lost) return lost();
      heard = true;
      quiet();
      take(data);
    };
    worker.onerror = () => { if (!heard) alone(); };
    worker.port.postMessage({ topic });
    // A stream that another tab has opened tells only what changes from now on.
    once();
    addEventListener("pagehide", () => worker.port.postMessage({ leave: true }));
    addEventListener("pageshow", (event) => { if (event.persisted) worker.port.postMessage({ topic }); });
    setTimeout(() => { if (!heard) ask(); }, 6000);
  };

  if (topic) {
    if (window.SharedWorker) shared(); else if (window.EventSource) alone(); else ask();
  }

  for (const box of document.querySelectorAll("[data-filter=event]")) {
    const note = () => { box.checked ? hiddenKinds.delete(box.value) : hiddenKinds.add(box.value); filterEvents(); };
    box.addEventListener("change", note);
    note();
  }

  tellTimes(document);

  // Keys: / to search, g and a letter to go somewhere, as long as nothing is being typed.
  let went = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) return;
    if (event.key === "/") {
      const search = document.getElementById("q");
      if (search) { event.preventDefault(); search.focus(); } else location.href = "/";
      return;
    }
    if (went) {
      const place = { r: "/", s: "/studies", h: "/host" }[event.key];
      if (place) location.href = place;
    }
    went = event.key === "g";
  });

  // The study's editor: checked as one types.
  const text = document.getElementById("text");
  if (text) {
    const lines = document.getElementById("lines");
    const result = document.getElementById("check");
    const number = () => {
      const count = text.value.split("\n").length;
      const wrong = [...result.querySelectorAll("li.bad[data-line]")].map((one) => Number(one.dataset.line));
      const shown = count + ":" + wrong.join();
      if (lines.dataset.shown === shown) return;
      lines.dataset.shown = shown;
      // Plain text between the few marked lines.
      const parts = [];
      let plain = "";
      for (let line = 1; line <= count; line += 1) {
        if (wrong.includes(line)) {
          const mark = document.createElement("b");
          mark.textContent = line;
          parts.push(plain, mark);
          plain = "\n";
        } else {
          plain += line + "\n";
        }
      }
      lines.replaceChildren(...parts, plain);
      lines.scrollTop = text.scrollTop;
    };
    // Of a text with mistakes nobody knows; the button stays as it was.
    const offerShort = () => {
      const sound = result.querySelector(".sound");
      if (sound) document.getElementById("start-short").hidden = sound.dataset.short === undefined;
    };
    let timer = 0;
    let latest = 0;
    const check = async () => {
      const mine = ++latest;
      const form = new FormData(document.getElementById("editor"));
      try {
        const answer = await fetch("/studies/check", { method: "POST", body: new URLSearchParams(form) });
        const html = await answer.text();
        // An answer to what was typed before says nothing any more.
        if (!answer.ok || mine !== latest) return;
        result.innerHTML = html;
        number();
        offerShort();
      } catch { /* The next key asks again. */ }
    };
    text.addEventListener("input", () => { number(); clearTimeout(timer); timer = setTimeout(check, 350); });
    text.addEventListener("scroll", () => { lines.scrollTop = text.scrollTop; });
    result.addEventListener("click", (event) => {
      const button = event.target.closest("[data-goto]");
      if (!button) return;
      const before = text.value.split("\n").slice(0, Number(button.dataset.goto) - 1).join("\n").length;
      const at = Math.min(text.value.length, (button.dataset.goto === "1" ? 0 : before + 1) + Number(button.dataset.column) - 1);
      text.focus();
      text.setSelectionRange(at, at);
    });
    number();
  }
})();
