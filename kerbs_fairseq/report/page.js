"use strict";
(() => {
  const make = (tag, options = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), options);
    element.append(...children);
    return element;
  };

  // --- tabs; without this script all parts are shown one below the other
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const open = (tab) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", chosen);
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
    }
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) {
        const next = tabs[(i + step + tabs.length) % tabs.length];
        open(next);
        next.focus();
      }
    });
  });
  const named = tabs.find((tab) => "#" + tab.getAttribute("aria-controls") === location.hash);
  open(named || tabs[0]);

  // --- the search for a word
  const data = JSON.parse(document.getElementById("data").textContent);
  const box = document.getElementById("search");
  if (!box) return;
  const matches = document.getElementById("matches");
  const detail = document.getElementById("detail");
  const plain = (word) => word.toLowerCase().replace(/^▁|@@$/g, "");
  const keys = data.words.map(([word]) => plain(word));
  const MOST = 40;

  const distance = (a, b) => {
    let row = Array.from({ length: b.length + 1 }, (_, j) => j);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      }
      row = next;
    }
    return row[b.length];
  };

  const search = (text) => {
    const wanted = plain(text.trim());
    if (!wanted) return [data.chosen.length ? data.chosen : keys.slice(0, 12).map((_, i) => i), ""];
    const ranked = [];
    keys.forEach((key, i) => {
      const at = key.indexOf(wanted);
      if (at >= 0) ranked.push([key === wanted ? 0 : at === 0 ? 1 : 2, i]);
    });
    if (ranked.length) {
      ranked.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      const more = ranked.length > MOST ? `The ${MOST} most frequent of ${ranked.length}.` : "";
      return [ranked.slice(0, MOST).map(([, i]) => i), more];
    }
    const near = keys
      .map((key, i) => [Math.abs(key.length - wanted.length) > 3 ? 99 : distance(wanted, key), i])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    return [near.slice(0, 5).map(([, i]) => i), `No word has “${text.trim()}” in it. The nearest:`];
  };

  const percent = (x) => (100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0) + " %";
  const number = (x) => (x === null ? "?" : String(x));

  const example = ([sentence, position, probability]) => {
    const line = make("p", { className: "example", title: `probability of the sense: ${probability}` });
    data.sentences[sentence].split("\t").forEach((piece, i) => {
      if (i !== position) return line.append(piece);
      const word = piece.trim();
      const at = piece.indexOf(word);
      line.append(piece.slice(0, at), make("mark", { textContent: word }), piece.slice(at + word.length));
    });
    return line;
  };

  const wordButton = (i) => {
    const button = make("button", { type: "button", className: "word", textContent: data.words[i][0] });
    button.addEventListener("click", () => show(i));
    return button;
  };

  const senseBlock = ([theta, bias, share, length, near, meant, examples], i) => {
    const dot = make("span", { className: "dot" });
    dot.style.background = `var(--c${i % 6})`;
    const bar = make("div", { className: "bar" });
    bar.style.cssText = `width:${Math.max(1, 100 * share)}%;background:var(--c${i % 6})`;
    const facts = [`${percent(share)} of its usage`, `length ${number(length)}`];
    if (bias !== null) facts.unshift(`bias ${number(bias)}`);
    if (data.theta) facts.unshift(`θ ${number(theta)}`);
    if (data.contexts) facts.push(`meant ${meant} times in ${data.split}`);
    const block = make("div", { className: "sense" }, make("p", {}, dot, make("b", { textContent: `Sense ${i + 1}` }), ` · ${facts.join(" · ")}`), bar);
    if (near.length) {
      const line = make("p", { className: "hint" }, "Nearest senses of other words: ");
      near.forEach((other, j) => line.append(j ? ", " : "", wordButton(other)));
      block.append(line);
    }
    for (const one of examples || []) block.append(example(one));
    return block;
  };

  const show = (i) => {
    const [word, count, senses] = data.words[i];
    const times = count === null ? "" : `, ${count} times in training`;
    const head = make("h3", { textContent: word });
    const line = make("p", { className: "hint", textContent: `${senses.length} sense${senses.length > 1 ? "s" : ""}${times}` });
    detail.replaceChildren(head, line, ...senses.map(senseBlock));
    for (const button of matches.children) button.setAttribute("aria-pressed", button.dataset.word === String(i));
  };

  const list = () => {
    const [words, message] = search(box.value);
    const buttons = words.map((i) => {
      const senses = make("small", { textContent: ` ${data.words[i][2].length}` });
      const button = make("button", { type: "button", title: "number of senses" }, data.words[i][0], senses);
      button.dataset.word = i;
      button.addEventListener("click", () => show(i));
      return button;
    });
    matches.replaceChildren(...buttons);
    document.getElementById("message").textContent = message;
    if (words.length) show(words[0]);
  };
  box.addEventListener("input", list);
  list();
})();
