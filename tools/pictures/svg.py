"""An SVG of boxes, lines and text, readable on light and on dark pages and by screen readers.

Owns the colours and the measures of text; knows nothing of plans. Coordinates are those of the view box, in which text
is 13 units high.
"""

from __future__ import annotations

from html import escape

WIDTH = 720
_MARGIN = 20
# The mean advance of a letter in ems, on the wide side of common fonts, so that what fits here fits everywhere.
_ADVANCE = {"": 0.56, "bold": 0.6, "mono": 0.61}

# Of each colour: on light pages, on dark ones. The letters are fills of parts that differ.
_FILLS = {
    "paper": ("#ffffff", "#16191d"),
    "card": ("#f4f5f2", "#22272c"),
    "ink": ("#1c1f23", "#e8eaec"),
    "soft": ("#59616a", "#a3acb5"),
    "a": ("#c6dfec", "#1f4f68"),
    "b": ("#f7d9b8", "#74481a"),
    "c": ("#cfe6cd", "#2c5a33"),
    "d": ("#e5d3ea", "#5a3d66"),
    "e": ("#f3cfcf", "#713636"),
    "f": ("#d6daf3", "#3b437d"),
    "g": ("#ece5b4", "#5f591c"),
    "h": ("#c5e8e2", "#1c5f58"),
}
_STROKES = {"edge": ("#a9aea6", "#4f5861"), "arrow": ("#59616a", "#a3acb5"), "mark": ("#b3452c", "#f0957c")}
TILES = "abcdefgh"


def _style() -> str:
    def rules(which: int) -> str:
        fills = "".join(f".{name}{{fill:{both[which]}}}" for name, both in _FILLS.items() if name != "ink")
        strokes = "".join(f".{name}{{stroke:{both[which]}}}" for name, both in _STROKES.items() if name != "edge")
        # What most boxes and words have, so that it is not said of each.
        return f"rect,.edge{{stroke:{_STROKES['edge'][which]}}}text{{fill:{_FILLS['ink'][which]}}}{fills}{strokes}"

    fonts = (
        "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px}"
        ".small{font-size:11.5px}.bold{font-weight:600}.mono{font-family:ui-monospace,Menlo,Consolas,monospace}"
        ".line{fill:none;stroke-width:1.4}.mid{text-anchor:middle}.end{text-anchor:end}"
    )
    return f"{fonts}{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}"


def number(value: float) -> str:
    """A coordinate to a tenth, without a useless ".0"."""
    return f"{value:.1f}".removesuffix(".0")


class Svg:
    """A picture that grows downwards: `bottom` is the lowest coordinate drawn so far.

    Attributes:
      name: the file's name, which makes the ids of its title and description.
      title, description: read aloud in place of the picture.
    """

    def __init__(self, name: str, title: str, description: str) -> None:
        self.name, self.title, self.description = name, title, description
        self.bottom = 0.0
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, fill: str, radius: float = 3) -> None:
        """A filled rectangle with an edge."""
        self.bottom = max(self.bottom, y + height)
        at = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        round_ = f' rx="{number(radius)}"' if radius else ""
        self._parts.append(f'<rect {at} class="{fill}"{round_}/>')

    def text(
        self, x: float, y: float, words: str, style: str = "", anchor: str = "start", width: float | None = None
    ) -> None:
        """Text with its base line at `y`; `style` of "bold", "mono", "small" and "soft".

        Raises:
          ValueError: the text does not fit `width`, or the picture.
        """
        kinds = style.split()
        size = 11.5 if "small" in kinds else 13
        long = size * max(_ADVANCE[kind] for kind in _ADVANCE if not kind or kind in kinds) * len(words)
        left = x - {"start": 0.0, "middle": long / 2, "end": long}[anchor]
        if long > (width or WIDTH) or left < 0 or left + long > WIDTH:
            raise ValueError(f"{words!r} takes {long:.0f} at {left:.0f}, and has {width or WIDTH:.0f}")
        self.bottom = max(self.bottom, y + 4)
        kinds += {"start": [], "middle": ["mid"], "end": ["end"]}[anchor]
        shown = f' class="{" ".join(kinds)}"' if kinds else ""
        self._parts.append(f'<text x="{number(x)}" y="{number(y)}"{shown}>{escape(words)}</text>')

    def label(self, x: float, y: float, width: float, height: float, words: str, style: str = "") -> None:
        """Text in the middle of a rectangle that is there."""
        self.text(x + width / 2, y + height / 2 + 4.3, words, style, "middle", width)

    def line(
        self, *points: tuple[float, float], style: str = "edge", dashed: bool = False, arrow: bool = False
    ) -> None:
        """A line through points, with a head at the last one for an arrow."""
        self.bottom = max(self.bottom, *(y for _, y in points))
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        more = (' stroke-dasharray="4 3"' if dashed else "") + (' marker-end="url(#head)"' if arrow else "")
        self._parts.append(f'<path d="{path}" class="line {style}"{more}/>')

    def heading(self, x: float, y: float, words: str, note: str = "") -> None:
        """The title of a part of the picture, and a line that explains it."""
        self.text(x, y, words, "bold")
        if note:
            self.text(x, y + 18, note, "soft")

    def __str__(self) -> str:
        height, inside = number(self.bottom + _MARGIN), number(self.bottom + _MARGIN - 1)
        ids = f'aria-labelledby="{self.name}-title {self.name}-desc"'
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {ids}>',
                "<!-- Drawn by `python -m tools.pictures`: change the code, not this file. -->",
                f'<title id="{self.name}-title">{escape(self.title)}</title>',
                f'<desc id="{self.name}-desc">{escape(self.description)}</desc>',
                f"<style>{_style()}</style>",
                f'<defs>{head}<path d="M0 0L8 4L0 8z" class="soft"/></marker></defs>',
                f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{inside}" rx="8" class="paper"/>',
                *self._parts,
                "</svg>\n",
            ]
        )
