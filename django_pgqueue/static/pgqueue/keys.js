/* Keyboard shortcuts: "?" shows the list, "g" and a letter opens a page, "/" goes to the search, "r" refreshes. They do
   nothing in a field, with another key held down, or without the list. */
"use strict";
{
    const list = document.getElementById("pgqueue-keys");
    const opener = document.querySelector("[data-keys-open]");
    const WAIT_MS = 1500;

    if (list && opener) {
        let isGoing = false, timer = null;
        const isTyping = (target) => target.closest("input, select, textarea, [contenteditable]");
        const acts = {
            "?": () => list.open ? list.close() : list.showModal(),
            "/": () => document.querySelector(".pgqueue-navigation input[type=search], #searchbar, #pgqueue-limit-keys input[name=key]")?.focus(),
            "r": () => document.dispatchEvent(new Event("pgqueue-refresh")),
            "g": () => { isGoing = true; timer = setTimeout(() => { isGoing = false; }, WAIT_MS); },
        };

        document.addEventListener("keydown", (event) => {
            if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
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
