"""A small SVG picture: boxes, text and arrows, for light and dark pages, in colours that the colour-blind tell apart."""
import html

# Okabe and Ito 2008; "ink" is the page's text.
COLOURS = {"blue": "#0072b2", "orange": "#e69f00", "green": "#009e73", "red": "#d55e00", "purple": "#b565a7",
           "grey": "#8a9099", "ink": "currentColor"}
STYLE = """<style>svg { color: #1b1f24; background: #ffffff }
@media (prefers-color-scheme: dark) { svg { color: #e6e9ee; background: #16191d } }
text { fill: currentColor }</style>"""


class Picture:
    """What a reader without eyes gets is the title and the description."""

    def __init__(self, width, height, title, description):
        self.size, self.out = (width, height), []
        self.head = f"<title>{html.escape(title)}</title><desc>{html.escape(description)}</desc>"

    def text(self, x, y, words, size=12, anchor="start", bold=False, more=""):
        weight = ' font-weight="bold"' if bold else ""
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}{more}>'
                        f"{html.escape(words)}</text>")

    def box(self, x, y, width, height, colour="grey", words="", title="", solid=0.25, dashed=False, size=12):
        """A box with words in its middle. What is dashed is not there."""
        dash = ' stroke-dasharray="3 3" fill="none"' if dashed else f' fill="{COLOURS[colour]}" fill-opacity="{solid}"'
        note = f"<title>{html.escape(title)}</title>" if title else ""
        self.out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{dash} '
                        f'stroke="{COLOURS[colour]}">{note}</rect>')
        if words:
            self.text(x + width / 2, y + height / 2 + size * 0.36, words, size, "middle")

    def arrow(self, x1, y1, x2, y2, colour="grey", width=1.5, dashed=False, more=""):
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 7 * dx, y2 - 7 * dy  # where the head begins
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.out.append(f'<g stroke="{COLOURS[colour]}" fill="{COLOURS[colour]}"{more}>'
                        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{bx:.1f}" y2="{by:.1f}" stroke-width="{width}"{dash}/>'
                        f'<polygon points="{x2:.1f},{y2:.1f} {bx - 3.5 * dy:.1f},{by + 3.5 * dx:.1f} '
                        f'{bx + 3.5 * dy:.1f},{by - 3.5 * dx:.1f}"/></g>')

    def save(self, path):
        with open(path, "w") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.size[0]} {self.size[1]}" '
                       f'width="{self.size[0]}" role="img" font-family="sans-serif">{self.head}\n{STYLE}\n')
            file.write("\n".join(self.out) + "\n</svg>\n")
