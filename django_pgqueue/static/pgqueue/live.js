/* Refresh the regions [data-live] of a page: fetch the page again, and replace each region by the one with the same id.
   The interval is remembered in this browser. Without this script, the pages work and are not refreshed. */
"use strict";
{
    const KEY = "pgqueue-live";
    const control = document.querySelector("[data-live-control]");
    const regions = () => [...document.querySelectorAll("[data-live][id]")];

    if (control && regions().length) {
        const select = control.querySelector("select");
        const state = control.querySelector("[data-live-state]");
        const failed = control.querySelector("[data-live-failed]").content.textContent;
        let timer = null;

        const remembered = () => {
            try { return localStorage.getItem(KEY); } catch { return null; }
        };
        const remember = (value) => {
            try { localStorage.setItem(KEY, value); } catch { /* A private window may refuse it. */ }
        };

        /* A page that shows something under way refreshes itself, until the region no longer names the seconds. */
        const whileChanging = () => Math.max(...regions().map((region) => Number(region.dataset.live) || 0));

        /* A region in which the user is reading with the keyboard, or has chosen something, is left as it is. */
        const isInUse = (region) =>
            region.contains(document.activeElement) || region.querySelector("input:checked, details[open][data-opened]");

        const refresh = async () => {
            if (document.hidden) return;
            try {
                const answer = await fetch(location.href, { headers: { "X-Requested-With": "fetch" }, redirect: "error" });
                if (!answer.ok) throw new Error(answer.status);
                const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                for (const region of regions()) {
                    const fresh = page.getElementById(region.id);
                    if (fresh && !isInUse(region)) region.replaceWith(fresh);
                }
                state.textContent = "";
            } catch {
                state.textContent = failed;
            }
        };

        const plan = () => {
            clearTimeout(timer);
            const seconds = Number(select.value) || whileChanging();
            if (seconds) timer = setTimeout(async () => { await refresh(); plan(); }, seconds * 1000);
        };

        const seconds = remembered();
        if ([...select.options].some((option) => option.value === seconds)) select.value = seconds;
        select.addEventListener("change", () => { remember(select.value); state.textContent = ""; plan(); });
        document.addEventListener("toggle", (event) => event.target.toggleAttribute("data-opened", event.target.open), true);
        control.hidden = false;
        plan();
    }
}
