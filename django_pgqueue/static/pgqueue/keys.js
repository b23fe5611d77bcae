/* Keyboard shortcuts: "?" shows the list, "g" and a letter opens a page, "/" goes to the search, "r" refreshes. They do
   nothing in a field, with another key held down, or without the list. The list has a switch, which this browser
   remembers. */
"use strict";
{
    const list = document.getElementById("pgqueue-keys");
    const opener = document.querySelector("[data-keys-open]");
    const WAIT_MS = 1500;

    if (list && opener) {
        const OFF = "pgqueue-keys-off";
        const off = list.querySelector("[data-keys-off]");
        let isGoing = false, timer = null;
        try { off.checked = localStorage.getItem(OFF) === "1"; } catch { /* A private window may refuse it. */ }
        off.addEventListener("change", () => {
            try { localStorage.setItem(OFF, off.checked ? "1" : "0"); } catch { /* It holds for this page. */ }
        });
        const isTyping = (target) => target.closest("input, select, textarea, [contenteditable]");
        const acts = {
            "?": () => list.open ? list.close() : list.showModal(),
            "/": () => document.querySelector("#pgqueue-search")?.focus(),
            "r": () => document.dispatchEvent(new Event("pgqueue-refresh", { cancelable: true })) && location.reload(),
            "g": () => { isGoing = true; timer = setTimeout(() => { isGoing = false; }, WAIT_MS); },
        };

        document.addEventListener("keydown", (event) => {
            if (off.checked || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
            const place = isGoing && list.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
            const act = Object.hasOwn(acts, event.key) && acts[event.key];
            clearTimeout(timer);
            isGoing = false;
            if (!place && !act) return;
            event.preventDefault();
            if (place) location.assign(place.href);
            else act();
        });
        opener.addEventListener("click", () => list.showModal());
        opener.hidden = false;
    }
}
