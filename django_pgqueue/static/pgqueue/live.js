/* Refresh the regions [data-live] of a page: fetch the page again, and replace each region by the one with the same id.
   The interval is remembered in this browser. Without this script, the pages work and are not refreshed. */
"use strict";
{
    const KEY = "pgqueue-live";
    const control = document.querySelector("[data-live-control]");
    /* The counts of the sidebar. The page has those of the latest reading; the document of the overview makes a new one. */
    const count = async () => {
        const url = document.querySelector("[data-counts-url]")?.dataset.countsUrl;
        const counts = document.querySelectorAll(".pgqueue-count[data-count]");
        if (!url || !counts.length) return;
        try {
            const answer = await fetch(url, { redirect: "error" });
            if (!answer.ok) return;
            const figures = await answer.json();
            for (const each of counts) {
                const figure = figures[each.dataset.count];
                const value = figure?.value ?? figure ?? 0;
                each.textContent = value ? value.toLocaleString(document.documentElement.lang || "en") + (figure.is_exact === false ? "+" : "") : "";
            }
        } catch { /* The page stays as the server has made it. */ }
    };
    const regions = () => [...document.querySelectorAll("[data-live][id]")];

    /* Django's script for the checkboxes of a list reads the rows once. It gets the rows that are there when it asks. */
    const rows = {
        forEach(act) { [...this].forEach(act); },
        *[Symbol.iterator]() { yield* document.querySelectorAll("tr input.action-select"); },
    };
    let known = null;
    const selectRows = () => {
        const toggle = document.getElementById("action-toggle");
        if (!window.Actions || !toggle || toggle === known) return;
        known = toggle;
        try {
            window.Actions(rows, { parent: toggle.closest(".result-list-wrapper") ?? document });
        } catch { /* The theme has a script of its own. */ }
    };

    /* Of a list with the same columns, only the rows are replaced, so that the scripts keep what they have bound. */
    const replace = (region, fresh) => {
        const [old, now] = [region, fresh].map((each) => each.querySelector("#result_list"));
        if (old?.tBodies[0] && now?.tBodies[0] && old.tHead?.textContent === now.tHead?.textContent) {
            old.tBodies[0].replaceChildren(...now.tBodies[0].rows);
        } else {
            const places = [...region.querySelectorAll(".pgqueue-scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
            region.replaceWith(fresh);
            fresh.querySelectorAll(".pgqueue-scroll").forEach((box, number) => box.scrollTo(...(places[number] ?? [0, 0])));
        }
    };

    if (control && regions().length) {
        const select = control.querySelector("select");
        const state = control.querySelector("[data-live-state]");
        const failed = control.querySelector("[data-live-failed]").content.textContent;
        let timer = null;
        let asOf = document.getElementById("pgqueue-as-of");

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
            region.contains(document.activeElement) || region.querySelector("input:checked, details[open][data-opened]")
            || [...region.querySelectorAll("select")].some((each) => each.selectedIndex > 0);

        const refresh = async () => {
            if (document.hidden) return;
            try {
                const answer = await fetch(location.href, { headers: { "X-Requested-With": "fetch" }, redirect: "error" });
                if (!answer.ok) throw new Error(answer.status);
                const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                const isLeft = regions().map((region) => {
                    const fresh = page.getElementById(region.id);
                    if (!fresh || isInUse(region)) return true;
                    replace(region, fresh);
                    return false;
                });
                if (!isLeft.includes(true)) asOf.replaceWith(asOf = page.getElementById(asOf.id));
                count();
                selectRows();
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
        document.addEventListener("pgqueue-refresh", (event) => { event.preventDefault(); refresh(); });
        control.hidden = false;
        plan();
    }
    count();
}
