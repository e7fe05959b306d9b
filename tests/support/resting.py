"""Pages of the app that one test leaves open for the next.

Most of the time to open a page goes to Gradio, which compiles its files and creates its components. A test changes only
the explorer, so only the explorer starts anew: its element, its code, its initial value and its address.
"""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page, ViewportSize

DESKTOP: ViewportSize = {"width": 1400, "height": 1000}
# Listeners of earlier tests stay on a page, so it is closed one day; after a hundred tests it is as quick as at first.
MAX_VISITS = 60
# Gradio makes a function of the explorer's code and calls it with the element; this script lets a test call it again.
MOUNTING = """(() => {
    const { Function } = window;
    const construct = (make, self, words) => {
        const run = Reflect.apply(make, self, words);
        return words[0] === "element" && words[1] === "trigger" ? remountable(run) : run;
    };
    const remountable = (run) => (element, trigger, props, ...others) => {
        const start = JSON.stringify(props.value ?? null), html = element.innerHTML, body = document.body.className;
        let mounted = element;
        window.mountAgain = (address) => {
            const fresh = element.cloneNode(false);
            fresh.innerHTML = html;
            mounted.replaceWith(fresh);
            mounted = fresh;
            history.replaceState(null, "", address);
            document.body.className = body;
            document.documentElement.style.colorScheme = "";
            scrollTo(0, 0);
            let isStarting = true;
            const value = (all, name) => name === "value" && isStarting ? JSON.parse(start) : all[name];
            run(fresh, trigger, new Proxy(props, { get: value }), ...others);
            isStarting = false;
        };
        run(element, trigger, props, ...others);
    };
    window.Function = new Proxy(Function, { apply: construct });
    // Gradio counts the seconds since its page was created at every frame, even on an idle page.
    const { requestAnimationFrame } = window, clock = /^\\(\\)=>\\{\\w+\\(\\w+,\\(performance\\.now\\(\\)-/;
    window.requestAnimationFrame = (draw) => clock.test(String(draw)) ? 0 : requestAnimationFrame(draw);
})();"""

_resting: dict[tuple[BrowserContext, str], list[Page]] = {}
_visits: dict[Page, int] = {}


def mount_again(context: BrowserContext, address: str, url: str) -> Page | None:
    """An idle page of an app, as if it had just been opened at ``url``; None if there is none."""
    while pages := _resting.get((context, address)):
        page = pages.pop()
        if not page.is_closed():
            page.bring_to_front()
            page.evaluate("(url) => window.mountAgain(url)", url)
            return page
    return None


def rest(page: Page, address: str, viewport: ViewportSize | None) -> None:
    """Keep a page for the next test, unless it had `MAX_VISITS`, or has left the app."""
    _visits[page] = _visits.get(page, 0) + 1
    can_rest = page.url.startswith(f"{address}/") and page.evaluate("() => typeof window.mountAgain === 'function'")
    if _visits[page] >= MAX_VISITS or not can_rest:
        _visits.pop(page)
        page.close()
        return
    page.unroute_all()
    page.emulate_media(media="null", color_scheme="null", reduced_motion="null", forced_colors="null")
    if viewport is not None:
        page.set_viewport_size(viewport)
    # At this corner the mouse hovers over nothing.
    page.mouse.move(0, 0)
    _resting.setdefault((page.context, address), []).append(page)


def close_resting(address: str = "") -> None:
    """Close the idle pages of an app before it ends, so that they stop asking it; without an address, of all apps."""
    for key in [key for key in _resting if address in ("", key[1])]:
        for page in _resting.pop(key):
            _visits.pop(page, None)
            if not page.is_closed():
                page.close()
