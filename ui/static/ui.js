// Keeps the page as the server sees it: takes each event's document and changes what differs.
// Elements stay the same ones, so that focus, scrolling and open details are kept.
"use strict";

(() => {
  const AGAIN_MS = 3000;
  let source = null;

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && node.dataset.key) || null;

  function morph(old, fresh) {
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) return;
    for (const { name } of [...old.attributes]) {
      // Whether details are open is the reader's own choice.
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    children(old, fresh);
  }

  function children(old, fresh) {
    if ([...old.children, ...fresh.children].some(keyOf)) {
      // Blanks between keyed elements would only make those move.
      for (const parent of [old, fresh]) {
        for (const node of [...parent.childNodes]) {
          if (node.nodeType === Node.TEXT_NODE && !node.data.trim()) node.remove();
        }
      }
    }
    const wanted = new Set([...fresh.children].map(keyOf));
    const known = new Map();
    for (const node of [...old.children]) {
      const key = keyOf(node);
      if (key && wanted.has(key)) known.set(key, node);
      else if (key) node.remove();
    }
    let at = old.firstChild;
    for (const want of [...fresh.childNodes]) {
      const key = keyOf(want);
      const have = key ? known.get(key) : at && !keyOf(at) ? at : null;
      if (!have || have.nodeName !== want.nodeName) {
        old.insertBefore(want, at);
        continue;
      }
      if (have === at) at = at.nextSibling;
      else old.insertBefore(have, at);
      morph(have, want);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function show(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const focused = document.activeElement;
    document.title = fresh.title;
    children(document.body, fresh.body);
    // An element that was moved has lost the focus.
    if (focused && focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
  }

  function lost() {
    const state = document.getElementById("state");
    state.className = "off";
    if (state.textContent !== "Connection lost") state.textContent = "Connection lost";
  }

  function open() {
    const address = document.body.dataset.live; // a page that is none of ours has none
    if (source || document.hidden || !address) return;
    source = new EventSource(address);
    source.addEventListener("page", (event) => show(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      lost();
      if (source && source.readyState === EventSource.CLOSED) {
        // It was refused, and the browser would not try again.
        close();
        setTimeout(open, AGAIN_MS);
      }
    });
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
})();
