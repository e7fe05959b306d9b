"""Pages of the app that one test leaves and the next one goes on with.

Of what opening a page takes, most is Gradio's: its files are compiled and its parts made. What a test could have
changed is the explorer's, and that begins anew: its element, its code, the value and the address it starts with.
"""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page, ViewportSize

DESKTOP: ViewportSize = {"width": 1400, "height": 1000}
# What listened to a page of an earlier test stays with it.
MOST_VISITS = 12
# Gradio makes a function of the explorer's code and calls it with the element; here that can be repeated.
MOUNTING = """(() => {
    const { Function } = window;
    const made = (make, self, words) => {
        const run = Reflect.apply(make, self, words);
        return words[0] === "element" && words[1] === "trigger" ? starting(run) : run;
    };
    const starting = (run) => (element, trigger, props, ...others) => {
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
    window.Function = new Proxy(Function, { apply: made });
    // Gradio goes on counting the seconds in which its page was made, at every frame of a page at rest.
    const { requestAnimationFrame } = window, clock = /^\\(\\)=>\\{\\w+\\(\\w+,\\(performance\\.now\\(\\)-/;
    window.requestAnimationFrame = (draw) => clock.test(String(draw)) ? 0 : requestAnimationFrame(draw);
})();"""

_resting: dict[tuple[BrowserContext, str], list[Page]] = {}
_visits: dict[Page, int] = {}


def mount_again(context: BrowserContext, address: str, asked: str) -> Page | None:
    """A page of an app that is at rest, as if it had just been opened with an address; None where there is none."""
    while pages := _resting.get((context, address)):
        page = pages.pop()
        if not page.is_closed():
            page.bring_to_front()
            page.evaluate("(asked) => window.mountAgain(asked)", asked)
            return page
    return None


def rest(page: Page, address: str, viewport: ViewportSize | None) -> None:
    """Keep a page for the next test, unless it is worn, or is no longer a page of the app."""
    _visits[page] = _visits.get(page, 0) + 1
    can_rest = page.url.startswith(f"{address}/") and page.evaluate("() => typeof window.mountAgain === 'function'")
    if _visits[page] >= MOST_VISITS or not can_rest:
        _visits.pop(page)
        page.close()
        return
    page.unroute_all()
    page.emulate_media(media="null", color_scheme="null", reduced_motion="null", forced_colors="null")
    if viewport is not None:
        page.set_viewport_size(viewport)
    # Where nothing of the page is hovered.
    page.mouse.move(0, 0)
    _resting.setdefault((page.context, address), []).append(page)


def close_resting(address: str = "") -> None:
    """Before an app ends: none of its pages goes on to ask it. Without an address, the pages of all apps."""
    for key in [key for key in _resting if address in ("", key[1])]:
        for page in _resting.pop(key):
            _visits.pop(page, None)
            if not page.is_closed():
                page.close()
