/* Suggest names, search keys and their values in the search box of the console. Without this script, the box works and
   suggests nothing. */
"use strict";
{
    const WAIT = 200; /* Milliseconds without a key press before the server is asked. */
    const box = document.querySelector("[data-completions]");

    if (box) {
        const list = document.getElementById(box.getAttribute("list"));
        let timer = null;
        let latest = 0;

        const suggest = async () => {
            const asked = ++latest;
            const url = new URL(box.dataset.completions, location.href);
            url.searchParams.set("q", box.value);
            try {
                const answer = await fetch(url, { headers: { "X-Requested-With": "fetch" }, redirect: "error" });
                if (!answer.ok) return;
                const { completions } = await answer.json();
                if (asked !== latest) return; /* A later text has been asked for. */
                list.replaceChildren(...completions.map((text) => {
                    const option = document.createElement("option");
                    option.value = text;
                    return option;
                }));
            } catch { /* The box keeps the suggestions that it has. */ }
        };

        box.addEventListener("input", () => {
            clearTimeout(timer);
            if (box.value) timer = setTimeout(suggest, WAIT);
        });
    }
}
