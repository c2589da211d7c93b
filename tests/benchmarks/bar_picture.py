"""Small multiples of stacked bars as an SVG, without dependencies."""
import xml.sax.saxutils

COLUMNS = 4
WIDTH, HEIGHT, GAP = 250, 190, 28
TOP = 54
COLOURS = ('#b8b36a', '#7fb2d9', '#5fae7e', '#e6a04c', '#b97fae', '#cfcfcf')
STYLE = ('text { font: 11px sans-serif; fill: #222 } .h { font-weight: bold; font-size: 12px } '
         '.n { text-anchor: middle }')


def _rectangle(x, y, width, height, colour):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x, y, text, kind=''):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{xml.sax.saxutils.escape(text)}</text>'


def _panel(x, y, title, bars):
    """bars: [(label, [part of each name])]. The highest one fills the height of the panel."""
    lines = [_text(x, y - 18, title, 'h')]
    scale = HEIGHT / max(max(sum(parts) for _, parts in bars), 1e-9)
    step = WIDTH / len(bars)
    for at, (label, parts) in enumerate(bars):
        left, bottom = x + (at + 0.12) * step, y + HEIGHT
        for part, colour in zip(parts, COLOURS):
            bottom -= part * scale
            lines.append(_rectangle(left, bottom, step * 0.76, part * scale, colour))
        middle = left + step * 0.38
        lines += [_text(middle, bottom - 4, f'{sum(parts):.1f}', 'n'), _text(middle, y + HEIGHT + 14, label, 'n')]
    return lines


def draw(title, names, panels):
    """The text of an SVG. panels: {title: [(label of a bar, [its part of each name])]}; there are at most as many names
    as COLOURS."""
    count = min(COLUMNS, len(panels))
    width = max(count * (WIDTH + GAP) + GAP, 700)
    height = TOP + -(-len(panels) // COLUMNS) * (HEIGHT + 62)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f'<title>{xml.sax.saxutils.escape(title)}</title>', f'<style>{STYLE}</style>',
             '<rect width="100%" height="100%" fill="#fff"/>', _text(GAP, 18, title, 'h')]
    x = GAP + 8 * len(title)
    for name, colour in zip(names, COLOURS):
        lines += [_rectangle(x, 8, 11, 11, colour), _text(x + 15, 18, name)]
        x += 35 + 6 * len(name)
    for at, (name, bars) in enumerate(panels.items()):
        lines += _panel(GAP + at % COLUMNS * (WIDTH + GAP), TOP + at // COLUMNS * (HEIGHT + 62), name, bars)
    return '\n'.join(lines) + '\n</svg>\n'
