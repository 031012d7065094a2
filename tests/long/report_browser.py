"""Looks at pages of apps/report in Chromium, and uses them: by keys, mouse and fingers. Prints TAP.

usage: report_browser.py FOLDER      has one.html, two.html, four.html, gpt.html, both.html, large.html
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "help"))
from browser import Browser

number = failures = 0


def check(holds, name, *seen):
    global number, failures
    number += 1
    failures += not holds
    print(("ok" if holds else "not ok"), number, "-", name)
    if not holds:
        print("#", *seen)


PAGE = """(() => { const all = (s) => document.querySelectorAll(s).length; return {
    canvases: all('canvas'), figures: all('svg'), unnamed: all('svg:not([aria-label]):not([aria-hidden]), button:empty'),
    tables: all('table'), wide: document.documentElement.scrollWidth - innerWidth, scripts: all('script'),
    limits: [...document.querySelectorAll('.limit')].map((e) => e.textContent),
    lanes: [...document.querySelectorAll('canvas')].map((c) => c.timeLine.rows.map((r) => r.lane.rank + ' ' + r.row).join(', ')) }; })()"""
LINE = "document.querySelector('canvas').timeLine"
VIEW = f"[{LINE}.from, {LINE}.to]"


def look_at(browser, folder):
    for name, traces, curves, rows in (
            ("one", 1, 4, ["0 kernel, 0 memory"]),
            ("two", 1, 4, [f"{rank} {row}" for rank in (0, 1) for row in ("part", "kernel", "message", "memory")]),
            ("four", 1, 4, [f"{rank} message" for rank in range(4)]),
            ("gpt", 1, 3, ["0 kernel, 0 memory"]),
            ("both", 2, 4, ["0 kernel", "1 kernel"])):
        browser.open(f"{folder}/{name}.html")
        seen = browser.evaluate(PAGE)
        check(not browser.errors and all(url.startswith("file:") for url in browser.requests) and len(browser.requests) == 1,
              f"{name}: no error, and nothing is fetched", browser.errors, browser.requests)
        # With the script, one figure is replaced: left are the curves, and the bar and the steps of each trace.
        check(seen["canvases"] == traces and seen["figures"] == curves + 2 * traces, f"{name}: its figures", seen)
        check(all(row in ", ".join(seen["lanes"]) for row in rows), f"{name}: its lanes", seen)
        check(len(seen["limits"]) == traces and all("limits the step" in text for text in seen["limits"]), f"{name}: what limits it", seen)
        check(seen["unnamed"] == 0 and seen["scripts"] == 2, f"{name}: figures have names", seen)
    browser.size(390, 800, mobile=True)
    browser.open(f"{folder}/four.html")
    check(browser.evaluate(PAGE)["wide"] <= 0, "nothing is wider than a telephone", browser.evaluate(PAGE))
    browser.size(1100, 900)
    browser.script(False)
    browser.open(f"{folder}/two.html")
    browser.script(True)
    seen = browser.evaluate(PAGE.replace("c.timeLine.rows", "[]"))
    check(seen["canvases"] == 0 and seen["figures"] == 7, "without JavaScript all figures are there", seen)
    colours = "getComputedStyle(document.body).backgroundColor + ' ' + getComputedStyle(document.body).color"
    light = browser.evaluate(colours)
    browser.scheme("dark")
    check(browser.evaluate(colours) != light, "dark and light", light)
    browser.scheme("light")


def use_keys(browser, folder):
    browser.open(f"{folder}/two.html")
    browser.evaluate("document.querySelector('canvas').focus()")
    end = browser.evaluate(f"{LINE}.end")
    steps = browser.evaluate(f"[...{LINE}.steps.begin]")
    at = browser.evaluate(VIEW)
    browser.key("+")
    nearer = browser.evaluate(VIEW)
    check(abs((nearer[1] - nearer[0]) * 2 - (at[1] - at[0])) < 1, "+ shows half as much", at, nearer)
    browser.key("ArrowRight")
    right = browser.evaluate(VIEW)
    check(abs(right[0] - nearer[0] - 0.2 * (nearer[1] - nearer[0])) < 1, "right moves by a fifth", nearer, right)
    browser.key("Home")
    check(browser.evaluate(VIEW) == [0, end], "Home shows the whole run", browser.evaluate(VIEW))
    browser.evaluate(f"{LINE}.showStep(0)")
    browser.key("n")
    at = browser.evaluate(VIEW)
    check(steps[0] < at[0] < steps[1] < at[1], "N goes to the next step", at, steps)
    browser.key("p")
    at = browser.evaluate(VIEW)
    check(at[0] < steps[0] < at[1], "P goes back", at, steps)
    said = "document.querySelector('.chosen').textContent"
    browser.key(".")
    first = browser.evaluate(said)
    browser.key("ArrowDown")
    second = browser.evaluate(said)
    browser.key(".")
    third = browser.evaluate(said)
    check(first.startswith("rank 0") and "rank 0" in second and len({first, second, third}) == 3 and "step" in third,
          "events are said", first, second, third)
    browser.key("Enter")
    chosen = browser.evaluate(f"(() => {{ const t = {LINE}, e = t.rows[t.chosen.row].events, i = t.chosen.index; return [e.begin[i], e.end[i]]; }})()")
    at = browser.evaluate(VIEW)
    check(at[0] <= chosen[0] and chosen[1] <= at[1] and at[1] - at[0] <= max(2 * (chosen[1] - chosen[0]), 8) + 1, "Enter zooms to it", chosen, at)
    for _ in range(40):
        browser.key("+")
    at = browser.evaluate(VIEW)
    check(7.9 < at[1] - at[0] < 8.1, "down to single microseconds", at)
    check(browser.evaluate("document.querySelector('canvas').getAttribute('aria-label')").startswith("Time line") and
          browser.evaluate("document.querySelector('.chosen').getAttribute('aria-live')") == "polite", "a screen reader is told")


def use_mouse(browser, folder):
    browser.open(f"{folder}/two.html")
    browser.evaluate("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    box = browser.evaluate("(() => { const r = document.querySelector('canvas').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()")
    left = browser.evaluate(f"{LINE}.left")
    browser.evaluate(f"{LINE}.zoom(0.5)")
    x, y, at = box[0] + 0.6 * box[2], box[1] + 45, browser.evaluate(VIEW)
    browser.mouse("mousePressed", x, y)
    for i in range(1, 11):
        browser.mouse("mouseMoved", x - 10 * i, y)
    browser.mouse("mouseReleased", x - 100, y)
    moved, wanted = browser.evaluate(VIEW), 100 / (box[2] - left) * (at[1] - at[0])
    check(abs(moved[0] - at[0] - wanted) < 0.02 * wanted, "dragging moves what is below the mouse", at, moved, wanted)
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300, modifiers=2)
    zoomed = browser.evaluate(VIEW)
    under = lambda v: v[0] + (x - box[0] - left) / (box[2] - left) * (v[1] - v[0])
    check(zoomed[1] - zoomed[0] < 0.5 * (moved[1] - moved[0]) and abs(under(zoomed) - under(moved)) < 1, "the wheel zooms there", moved, zoomed)
    browser.evaluate("document.activeElement.blur()")
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=100)
    check(browser.evaluate(VIEW) == zoomed, "without Ctrl it is the page's", browser.evaluate(VIEW))
    browser.evaluate("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    row = browser.evaluate(f"(() => {{ const t = {LINE}; t.showStep(1); return t.rows.find((r) => r.row === 'message').y; }})()")
    box = browser.evaluate("(() => { const r = document.querySelector('canvas').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()")
    browser.mouse("mousePressed", box[0] + 0.7 * box[2], box[1] + row + 8)
    browser.mouse("mouseReleased", box[0] + 0.7 * box[2], box[1] + row + 8)
    said = browser.evaluate("document.querySelector('.chosen').textContent")
    check("bucket" in said and "MiB" in said and "GB/s" in said, "a click says the message and its bytes", said)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    at, y = browser.evaluate(VIEW), box[1] + 45
    browser.touch("touchStart", (box[0] + 400, y), (box[0] + 500, y))
    for i in range(1, 11):
        browser.touch("touchMove", (box[0] + 400 - 5 * i, y), (box[0] + 500 + 5 * i, y))
    browser.touch("touchEnd")
    pinched = browser.evaluate(VIEW)
    check(abs((at[1] - at[0]) / (pinched[1] - pinched[0]) - 2) < 0.2, "two fingers zoom", at, pinched)


def large(browser, folder):
    seconds = browser.open(f"{folder}/large.html")
    events = browser.evaluate(f"{LINE}.rows.reduce((n, r) => n + r.events.count, 0)")
    check(events > 100000 and browser.evaluate(f"{LINE}.steps.count") == 1000, "8 ranks, 1,000 steps", events)
    drawing = browser.evaluate(f"""(() => {{ const t = {LINE}, times = [];
        for (const part of [1, 0.3, 0.01]) {{ for (let i = 0; i < 20; i++) {{
            t.view(i / 40 * t.end * (1 - part), i / 40 * t.end * (1 - part) + part * t.end);
            const begin = performance.now(); t.draw(); times.push(performance.now() - begin); }} }}
        return times.sort((a, b) => a - b)[times.length / 2 | 0]; }})()""")
    print(f"# opened in {seconds:.2f} s; a frame takes {drawing:.1f} ms; {os.path.getsize(folder + '/large.html') / 1e6:.2f} MB")
    busy = 3  # other programs may have most of the processor
    check(seconds < 2 * busy, "it opens in two seconds", seconds)
    check(drawing < 33 * busy, "30 frames a second", drawing)


def main():
    browser = Browser()
    for look in (look_at, use_keys, use_mouse, large):
        look(browser, sys.argv[1])
    browser.close()
    print(f"1..{number}")
    sys.exit(failures > 0)


main()
