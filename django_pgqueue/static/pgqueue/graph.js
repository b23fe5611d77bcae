/* Zoom the graph of a workflow, and go from one failed job to the next: by the buttons above it, and by keys while the
   graph has the focus. Without this script, the graph scrolls within its box, and the buttons are not shown. */
"use strict";
{
    const FACTOR = 1.25, LEAST = 0.2, MOST = 3;
    let scale = 1;
    let place = null;
    let failed = -1;

    const graph = () => document.querySelector(".pgqueue-graph");

    /* The size of the drawing without a zoom. An attribute and no style: the policy of the page may forbid styles. */
    const size = (svg) => svg.getAttribute("viewBox").split(" ").slice(2).map(Number);

    const resize = (box, to) => {
        const svg = box.querySelector("svg"), [width, height] = size(svg);
        const x = (box.scrollLeft + box.clientWidth / 2) / scale, y = (box.scrollTop + box.clientHeight / 2) / scale;
        scale = Math.min(MOST, Math.max(LEAST, to));
        svg.setAttribute("width", width * scale);
        svg.setAttribute("height", height * scale);
        box.scrollTo(x * scale - box.clientWidth / 2, y * scale - box.clientHeight / 2);
        document.querySelector("[data-graph-state]").textContent = `${Math.round(100 * scale)} %`;
    };

    const zoom = (box, by) => {
        const [width, height] = size(box.querySelector("svg"));
        const whole = Math.min(1, (box.clientWidth - 20) / width, (box.clientHeight - 20) / height);
        resize(box, by ? scale * FACTOR ** by : whole);
    };

    const goToNextFailed = (box, focuses) => {
        const found = [...box.querySelectorAll("[data-failed]")];
        if (!found.length) return;
        failed = (failed + 1) % found.length;
        const chosen = found[failed], link = chosen.closest("a");
        box.querySelectorAll(".pgqueue-box-chosen").forEach((each) => each.classList.remove("pgqueue-box-chosen"));
        chosen.classList.add("pgqueue-box-chosen");
        if (link && focuses) link.focus({ preventScroll: true });
        const at = chosen.getBoundingClientRect(), frame = box.getBoundingClientRect();
        box.scrollBy(
            at.left + at.width / 2 - frame.left - box.clientWidth / 2, at.top + at.height / 2 - frame.top - box.clientHeight / 2
        );
        box.scrollIntoView({ block: "nearest" });
        document.querySelector("[data-graph-state]").textContent = `${failed + 1} / ${found.length}`;
    };

    const KEYS = {
        "+": (box) => zoom(box, 1),
        "=": (box) => zoom(box, 1),
        "-": (box) => zoom(box, -1),
        "0": (box) => zoom(box, 0),
        "n": (box) => goToNextFailed(box, true),
    };

    /* live.js replaces the graph: show the tools of the new one, and restore the zoom and the place. */
    const prepare = () => {
        const box = graph(), tools = document.querySelector("[data-graph-tools][hidden]");
        if (!box || !tools) return;
        tools.hidden = false;
        if (scale !== 1) {
            const kept = scale;
            scale = 1;
            resize(box, kept);
        }
        if (place) box.scrollTo(...place);
        box.addEventListener("scroll", () => { place = [box.scrollLeft, box.scrollTop]; });
    };

    document.addEventListener("click", (event) => {
        const button = event.target.closest("[data-graph-tools] button");
        if (!button) return;
        if (button.hasAttribute("data-next-failed")) goToNextFailed(graph(), false);
        else zoom(graph(), Number(button.dataset.zoom));
    });
    document.addEventListener("keydown", (event) => {
        const box = event.target.closest(".pgqueue-graph"), act = KEYS[event.key];
        if (!box || !act || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        act(box);
    });
    new MutationObserver(prepare).observe(document.body, { childList: true, subtree: true });
    prepare();
}
