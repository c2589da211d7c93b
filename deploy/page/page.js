'use strict';
// The report of one or two runs. Parts: formats, elements, the view (axis, range and cursor that all charts
// share), charts, time line, tables, sections, the live document. docs/monitoring.md describes the document.

// Formats

const group = n => Math.round(n).toLocaleString('en-US');
function num(v) {
  if (v == null) return 'n/a';
  if (v === 0) return '0';
  const a = Math.abs(v);
  return a >= 1000 ? group(v) : String(+v.toPrecision(a < 1 ? 3 : 4));
}
function si(v) {
  for (const [unit, of] of [['G', 1e9], ['M', 1e6], ['k', 1e3]]) if (Math.abs(v) >= of) return +(v / of).toPrecision(3) + unit;
  return String(+v.toPrecision(3));
}
function bytes(v) {
  if (v == null) return 'n/a';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (Math.abs(v) >= 1024 && i < 4) { v /= 1024; i++; }
  return (i && v < 100 ? v.toFixed(1).replace(/\.0$/, '') : Math.round(v)) + ' ' + units[i];
}
function time(s) {
  if (s == null) return 'n/a';
  if (s < 60) return +s.toFixed(s < 10 ? 1 : 0) + ' s';
  const m = Math.floor(s / 60), two = n => String(Math.floor(n)).padStart(2, '0');
  if (m < 60) return m + ':' + two(s % 60) + ' min';
  return m < 1440 ? Math.floor(m / 60) + ':' + two(m % 60) + ' h' : Math.floor(m / 1440) + ' d ' + Math.floor(m % 1440 / 60) + ':' + two(m % 60) + ' h';
}
const timeTick = s => s && s % 86400 === 0 ? s / 86400 + ' d' : s % 60 || !s || s >= 3600 ? time(s) : s / 60 + ' min';
const fixed = v => v == null ? 'n/a' : v.toFixed(4);
const percent = v => v == null ? 'n/a' : (100 * v).toFixed(Math.abs(v) < .1 ? 1 : 0) + '%';
function micros(v) { return v == null ? 'n/a' : v >= 1e6 ? num(v / 1e6) + ' s' : v >= 1e3 ? num(+(v / 1e3).toPrecision(3)) + ' ms' : Math.round(v) + ' µs'; }
const exact = v => v == null ? 'n/a' : String(+v.toPrecision(4));

// Elements. All text of the document goes in as text nodes.

function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k === 'style') Object.assign(e.style, v);
    else if (v != null && v !== false) e.setAttribute(k, v);
  }
  e.append(...children.flat(Infinity).filter(c => c != null && c !== false));
  return e;
}
function svg(tag, attributes, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attributes || {})) if (v != null) k === 'style' ? Object.assign(e.style, v) : e.setAttribute(k, v);
  e.append(...children.flat().filter(c => c != null));
  return e;
}
let ids = 0;
const newId = () => 'i' + ++ids;

// The view

const AXES = {step: {name: 'Steps', one: 'step', form: group, tick: si}, samples: {name: 'Samples', one: 'sample', form: group, tick: si},
              t: {name: 'Time', one: 'time', form: time, tick: timeTick}};
const view = {axis: 'step', range: null, latest: false, cursor: null, charts: []};  // latest: the last fifth, also while it grows
let report = null;

function fullRange() {
  let most = 0;
  for (const run of report.runs) {
    const x = run.progress[view.axis] || [];
    if (x.length) most = Math.max(most, x[x.length - 1]);
    if (view.axis === 't') most = Math.max(most, run.time_s || 0);
  }
  return [0, most || 1];
}
function range() {
  if (view.range) return view.range;
  const full = fullRange();
  return view.latest ? [full[1] * .8, full[1]] : full;
}
function setRange(r) {
  const full = fullRange();
  if (r) {
    const least = (full[1] - full[0]) / 5000;
    r = [Math.max(full[0], Math.min(...r)), Math.min(full[1], Math.max(...r))];
    if (r[1] - r[0] < least) return;
    if (r[0] <= full[0] && r[1] >= full[1]) r = null;
  }
  view.range = r;
  view.latest = false;
  redraw();
}
function setCursor(x) { view.cursor = x; for (const c of view.charts) c.drawCursor(); }
let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; for (const c of view.charts) c.draw(); drawControls(); });
}

// The index of the point nearest to x; -1 without any.
function nearest(xs, x) {
  let lo = 0, hi = xs.length - 1;
  if (hi < 0) return -1;
  while (lo < hi) { const m = (lo + hi) >> 1; if (xs[m] < x) lo = m + 1; else hi = m; }
  return lo > 0 && x - xs[lo - 1] < xs[lo] - x ? lo - 1 : lo;
}
function ticks(lo, hi, n) {
  const raw = (hi - lo) / n, power = 10 ** Math.floor(Math.log10(raw)), by = [1, 2, 2.5, 5, 10].find(f => f * power >= raw * .999) * power;
  const out = [];
  // Where values are so large that a step is below their precision, there is no tick.
  for (let v = Math.ceil(lo / by - 1e-9) * by; v <= hi + by * 1e-6 && v + by > v; v += by) out.push(Math.abs(v) < by * 1e-9 ? 0 : v);
  return out;
}
function byteTicks(lo, hi, n) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(hi, 1)) / 10));
  return ticks(lo / unit, hi / unit, n).map(v => v * unit);
}
function timeTicks(lo, hi, n) {
  const by = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000].find(b => (hi - lo) / b <= n);
  if (!by || hi - lo < n) return ticks(lo, hi, n);
  const out = [];
  for (let v = Math.ceil(lo / by) * by; v <= hi; v += by) out.push(v);
  return out;
}

// A chart: series over the view's axis. Options: title, form (of a value), tick (of the y axis), zero, stack, height,
// series: [{name, run, x: {step, samples, t}, y, lo, hi, dots, faint, color, hidden}], marks: [{x: {...}, text}].
// Colour and dash tell the runs apart, dots the evaluations.
class Chart {
  constructor(options) {
    Object.assign(this, {height: 190, tick: options.form, points: []}, options);
    const title = newId(), sum = newId();
    this.read = el('div', {class: 'read', 'aria-hidden': 'true'});
    this.live = el('p', {class: 'sr', 'aria-live': 'polite'});
    this.sum = el('span', {class: 'sum', id: sum});
    this.plot = el('div', {class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'chart', 'aria-labelledby': title, 'aria-describedby': sum,
      onkeydown: e => this.key(e), onpointermove: e => this.move(e), onpointerleave: () => this.leave(), onpointerdown: e => this.down(e),
      onpointerup: e => this.up(e), ondblclick: () => setRange(null), onblur: () => setCursor(null)});
    const details = el('details', {ontoggle: () => this.fill(details)}, el('summary', {title: 'as a table'}, el('span', {class: 'sr'}, 'Table. '), this.sum));
    this.details = details;
    this.root = el('section', {class: 'chart c' + (options.span || 6)}, el('h3', {id: title}, options.title), this.read, this.plot, this.live, details);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    view.charts.push(this);
  }
  xs(s) { return s.x[view.axis] || []; }
  sx(v) { const r = range(); return this.left + (v - r[0]) / (r[1] - r[0]) * (this.width - this.left - 8); }
  ux(px) { const r = range(); return r[0] + (px - this.left) / (this.width - this.left - 8) * (r[1] - r[0]); }
  sy(v) { return 6 + (this.y1 - v) / (this.y1 - this.y0) * (this.height - 28); }

  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    const r = range();
    for (const s of this.series) {  // Those within the range, and one on either side.
      const xs = this.xs(s);
      let i = 0, j = xs.length;
      if (view.range || view.latest) {
        while (i + 1 < j && xs[i + 1] < r[0]) i++;
        while (j - 2 > i && xs[j - 2] > r[1]) j--;
      }
      s.from = i; s.to = j;
    }
    this.scaleY();
    const root = svg('svg', {height: this.height, viewBox: `0 0 ${this.width} ${this.height}`, 'aria-hidden': 'true'});
    const clip = newId();
    const bottom = this.height - 22;
    const labels = (this.form === bytes ? byteTicks : this.form === micros && this.y1 >= 1e6 ? (a, b, n) => ticks(a / 1e6, b / 1e6, n).map(v => v * 1e6) : ticks)(this.y0, this.y1, this.height > 150 ? 5 : 4).filter(v => v >= this.y0 && v <= this.y1);
    this.left = 8 + 6.3 * Math.max(3, ...labels.map(v => this.tick(v).length));
    root.append(svg('clipPath', {id: clip}, svg('rect', {x: this.left, y: 0, width: Math.max(0, this.width - this.left - 7), height: bottom + 1})));
    for (const v of labels) {
      const y = this.sy(v);
      root.append(svg('line', {x1: this.left, x2: this.width - 8, y1: y, y2: y, stroke: 'var(--grid)'}),
                  svg('text', {x: this.left - 6, y: y + 4, 'text-anchor': 'end'}, this.tick(v)));
    }
    drawAxis(root, r, v => this.sx(v), this.left, this.width - 8, bottom, view.axis);
    const body = svg('g', {'clip-path': `url(#${clip})`});
    for (const m of this.marks || []) {
      const x = m.x[view.axis];
      if (x != null) body.append(svg('line', {x1: this.sx(x), x2: this.sx(x), y1: 4, y2: bottom, stroke: 'var(--soft)', 'stroke-dasharray': '1 3'}, svg('title', {}, m.text)));
    }
    if (this.stack) this.drawStack(body); else for (const s of this.series) this.drawSeries(body, s);
    this.over = svg('g', {});
    root.append(body, this.over);
    this.plot.replaceChildren(root);
    this.summarize();
    this.drawCursor();
    if (this.details.open) this.fill(this.details);
  }
  scaleY() {
    let lo = Infinity, hi = -Infinity;
    if (this.stack) { this.addUp(); lo = 0; for (let i = this.series[0] ? this.series[0].from : 0; i < (this.series[0] ? this.series[0].to : 0); i++) hi = Math.max(hi, this.tops[this.tops.length - 1][i]); }
    else for (const s of this.series) {
      for (let i = s.from; i < s.to; i++) {
        const a = s.lo ? s.lo[i] : s.y[i], b = s.hi ? s.hi[i] : s.y[i];
        if (a != null && a < lo) lo = a;
        if (b != null && b > hi) hi = b;
      }
    }
    if (lo > hi) { lo = 0; hi = 1; }
    if (this.zero) lo = Math.min(lo, 0);
    if (lo === hi) { lo -= Math.abs(lo) * .1 || .5; hi += Math.abs(hi) * .1 || .5; if (this.zero) lo = 0; }
    const room = (hi - lo) * .05;
    this.y0 = this.zero && lo >= 0 ? 0 : lo - room;
    this.y1 = this.most != null ? Math.min(this.most, hi + room) : hi + room;
  }
  drawSeries(body, s) {
    const xs = this.xs(s), color = s.color || (s.run ? 'var(--b)' : 'var(--a)');
    let line = '', up = '', down = [], open = false;
    // Over time, a line does not join what a restart of the processes parts.
    const parts = view.axis === 't' && !s.dots && !s.lost ? report.runs[s.run].launches.flatMap(l => l.generations.map(g => g[0])) : [];
    let part = 0;
    for (let i = s.from; i < s.to; i++) {
      while (part < parts.length && parts[part] < xs[i]) { part++; open = false; }
      if (s.y[i] == null) { open = false; continue; }
      const x = this.sx(xs[i]).toFixed(1);
      line += (open ? 'L' : 'M') + x + ' ' + this.sy(s.y[i]).toFixed(1);
      open = true;
      if (s.lo && s.lo[i] != null) { up += (up ? 'L' : 'M') + x + ' ' + this.sy(s.hi[i]).toFixed(1); down.push(x + ' ' + this.sy(s.lo[i]).toFixed(1)); }
    }
    if (up) body.append(svg('path', {d: up + 'L' + down.reverse().join('L') + 'Z', fill: color, opacity: .16}));
    body.append(svg('path', {d: line, fill: 'none', stroke: color, 'stroke-width': s.faint ? 1 : 1.6, opacity: s.lost ? .4 : s.faint ? .55 : 1,
      'stroke-dasharray': s.lost ? '2 3' : s.run ? '6 3' : null, 'stroke-linejoin': 'round'}));
    const few = s.to - s.from <= 60;
    if (s.dots || s.to - s.from === 1) for (let i = s.from; i < s.to; i++) if (s.y[i] != null && (few || (s.best && s.best[i])))
      body.append(svg('circle', {cx: this.sx(xs[i]), cy: this.sy(s.y[i]), r: s.best && s.best[i] ? 4 : 2.6, fill: s.best && s.best[i] ? color : 'var(--panel)', stroke: color, 'stroke-width': 1.5}));
  }
  addUp() {
    const n = this.series[0] ? this.series[0].y.length : 0, sum = new Array(n).fill(0);
    this.tops = this.series.map(s => s.y.map((v, i) => sum[i] += v || 0));
  }
  drawStack(body) {
    this.series.forEach((s, k) => {
      const xs = this.xs(s), below = k ? this.tops[k - 1] : null;
      let up = '', down = [];
      for (let i = s.from; i < s.to; i++) {
        const x = this.sx(xs[i]).toFixed(1);
        up += (up ? 'L' : 'M') + x + ' ' + this.sy(this.tops[k][i]).toFixed(1);
        down.push(x + ' ' + this.sy(below ? below[i] : 0).toFixed(1));
      }
      if (up) body.append(svg('path', {d: up + 'L' + down.reverse().join('L') + 'Z', fill: s.color, stroke: 'var(--panel)', 'stroke-width': s.to - s.from > 300 ? 0 : .6}));
    });
  }

  // The values at the cursor, or the last ones.
  at() {
    const r = range(), x = view.cursor == null ? r[1] : view.cursor;
    return this.series.filter(s => !s.lost && s.y.length).map(s => {
      let i = nearest(this.xs(s), x);
      while (i > 0 && s.y[i] == null) i--;
      return {s, i, x: this.xs(s)[i], y: s.y[i]};
    });
  }
  drawCursor() {
    if (!this.over) return;
    const at = this.at();
    this.over.replaceChildren();
    if (view.cursor != null && at.length) {
      const x = this.sx(at[0].x);
      if (x >= this.left - 1) {
        this.over.append(svg('line', {x1: x, x2: x, y1: 4, y2: this.height - 22, stroke: 'var(--soft)'}));
        at.forEach((p, k) => { if (p.y != null && !this.stack) this.over.append(svg('circle', {cx: this.sx(p.x), cy: this.sy(p.y), r: 3.2, fill: p.s.color || (p.s.run ? 'var(--b)' : 'var(--a)'), stroke: 'var(--panel)'})); });
      }
    }
    this.read.replaceChildren(...at.map(p => el('span', {}, keyOf(p.s, this.stack), p.s.name + ' ', el('b', {}, this.form(p.y)),
      p.s.lo && p.s.lo[p.i] != null && p.s.lo[p.i] !== p.s.hi[p.i] && view.cursor != null ? ` [${this.form(p.s.lo[p.i])}, ${this.form(p.s.hi[p.i])}]` : '')),
      this.stack && at.length ? el('span', {}, 'sum ', el('b', {}, this.form(at.reduce((a, p) => a + (p.y || 0), 0)))) : '',
      view.cursor != null && at.length ? el('span', {}, `${AXES[view.axis].one} ${AXES[view.axis].form(at[0].x)}`) : '');
  }
  say() {
    const at = this.at();
    if (at.length) this.live.textContent = `${AXES[view.axis].one} ${AXES[view.axis].form(at[0].x)}: ` + at.map(p => `${p.s.name} ${this.form(p.y)}`).join(', ');
  }
  summarize() {
    const shown = this.series.filter(s => !s.lost && s.y.length);
    if (!shown.length) { this.sum.textContent = this.empty || 'No figures.'; return; }
    if (this.stack) {
      const total = shown.map(s => [s.name, s.y.slice(s.from, s.to).reduce((a, v) => a + (v || 0), 0)]).sort((a, b) => b[1] - a[1]);
      const all = total.reduce((a, t) => a + t[1], 0) || 1;
      this.sum.textContent = 'Most of a step goes to ' + total.slice(0, 3).map(t => `${t[0]} (${percent(t[1] / all)})`).join(', ') + '.';
      return;
    }
    this.sum.textContent = shown.map(s => {
      const xs = this.xs(s);
      let first = s.from, last = s.to - 1, lo = -1, hi = -1;
      while (first < last && s.y[first] == null) first++;
      while (last > first && s.y[last] == null) last--;
      if (s.y[first] == null) return `${s.name}: none.`;
      for (let i = first; i <= last; i++) {
        if (s.y[i] == null) continue;
        if (lo < 0 || (s.lo || s.y)[i] < (s.lo || s.y)[lo]) lo = i;
        if (hi < 0 || (s.hi || s.y)[i] > (s.hi || s.y)[hi]) hi = i;
      }
      const low = (s.lo || s.y)[lo], high = (s.hi || s.y)[hi], at = i => `at ${AXES[view.axis].tick(xs[i])}`;
      const Name = shown.length > 1 ? s.name + ' ' : '';
      if (low === high) return `${Name}${this.form(low)} throughout.`;
      if (many() || this.span < 3) return `${Name}${this.form(s.y[first])} → ${this.form(s.y[last])}.`;
      return `${Name}${this.form(s.y[first])} → ${this.form(s.y[last])}; lowest ${this.form(low)} ${at(lo)}, highest ${this.form(high)} ${at(hi)}.`;
    }).join(' ');
  }
  // The figures as a table of at most 60 rows.
  fill(details) {
    while (details.children.length > 1) details.lastChild.remove();
    if (!details.open) return;
    for (const run of new Set(this.series.map(s => s.run))) {
      const bySize = new Map();
      for (const s of this.series) if (s.run === run && !s.lost && s.y.length) bySize.set(s.x, (bySize.get(s.x) || []).concat(s));
      for (const [, list] of bySize) {
        const xs = this.xs(list[0]), n = list[0].to - list[0].from, every = Math.ceil(n / 60) || 1, rows = [];
        for (let i = list[0].from; i < list[0].to; i++) if ((i - list[0].from) % every === 0 || i === list[0].to - 1)
          rows.push(el('tr', {}, el('th', {scope: 'row'}, AXES[view.axis].form(xs[i])), list.map(s => el('td', {}, this.form(s.y[i])))));
        details.append(el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': this.title}, el('table', {},
          el('caption', {}, every > 1 ? `One in ${every} of ${n} points` : `${n} points`),
          el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, AXES[view.axis].name), list.map(s => el('th', {scope: 'col'}, s.name)))), el('tbody', {}, rows))));
      }
    }
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const main = this.series.find(s => !s.lost && s.y.length);
    if (!main) return;
    const xs = this.xs(main), r = range();
    let i = view.cursor == null ? main.to : nearest(xs, view.cursor);
    const by = e.shiftKey ? 10 : 1, page = Math.max(1, Math.round((main.to - main.from) / 10));
    const moves = {ArrowLeft: -by, ArrowRight: by, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity};
    if (e.key in moves) {
      if (view.cursor == null && moves[e.key] > 0 && e.key !== 'End') i = main.from - 1;
      i = Math.max(main.from, Math.min(main.to - 1, i + moves[e.key]));
      setCursor(xs[i]);
      this.say();
    } else if (e.key === '+' || e.key === '=' || e.key === '-') {
      const f = e.key === '-' ? 2 : .5, mid = view.cursor == null ? (r[0] + r[1]) / 2 : view.cursor;
      setRange([mid + (r[0] - mid) * f, mid + (r[1] - mid) * f]);
    } else if (e.key === '0' || (e.key === 'Escape' && view.range)) setRange(null);
    else if (e.key === 'Escape') setCursor(null);
    else return;
    e.preventDefault();
  }
  px(e) { return e.clientX - this.plot.getBoundingClientRect().left; }
  move(e) {
    if (this.drag != null) {
      const a = Math.min(this.drag, this.px(e)), b = Math.max(this.drag, this.px(e));
      this.drawCursor();
      this.over.append(svg('rect', {x: a, y: 4, width: b - a, height: this.height - 26, fill: 'var(--a)', opacity: .15}));
      return;
    }
    const r = range();
    setCursor(Math.max(r[0], Math.min(r[1], this.ux(this.px(e)))));
  }
  leave() { if (this.drag == null && document.activeElement !== this.plot) setCursor(null); }
  down(e) {
    if (e.pointerType !== 'mouse') return this.move(e);
    if (e.button) return;
    this.drag = this.px(e);
    this.plot.setPointerCapture(e.pointerId);
  }
  up(e) {
    const from = this.drag;
    this.drag = null;
    if (from != null && Math.abs(this.px(e) - from) > 6) setRange([this.ux(from), this.ux(this.px(e))]);
    else if (from != null) this.move(e);
  }
}
function keyOf(s, box) {
  const color = s.color || (s.run ? 'var(--b)' : 'var(--a)');
  return el('i', {class: 'key' + (box ? ' box' : s.dots ? ' dot' : s.run ? ' dash' : '') + (s.faint ? ' faint' : ''), style: box ? {background: color} : {borderColor: color}});
}
function drawAxis(root, r, sx, left, right, bottom, axis) {
  const a = AXES[axis], n = Math.max(2, Math.floor((right - left) / 85));
  root.append(svg('line', {x1: left, x2: right, y1: bottom, y2: bottom, stroke: 'var(--line)'}));
  for (const v of (axis === 't' ? timeTicks : ticks)(r[0], r[1], n)) {
    const x = sx(v);
    const anchor = x > right - 18 ? 'end' : x < left + 12 ? 'start' : 'middle';
    root.append(svg('line', {x1: x, x2: x, y1: bottom, y2: bottom + 4, stroke: 'var(--line)'}), svg('text', {x, y: bottom + 16, 'text-anchor': anchor}, a.tick(v)));
  }
}

// The time line of a run: its steps, launches, and a lane for each host and process of which there is something to say.

const KINDS = {
  eval: ['evaluation', 'var(--s2)', 'M0 -4L4 0L0 4L-4 0Z'], checkpoint: ['checkpoint', 'var(--good)', 'M-1.2 -5H1.2V5H-1.2Z'],
  called_off: ['checkpoint called off', 'var(--bad)', 'M-4 -4L4 4M4 -4L-4 4'], restart: ['server restart', 'var(--s0)', 'M0 -5L5 4H-5Z'],
  rollback: ['rollback', 'var(--bad)', 'M-5 0L4 -5V5Z'], warning: ['warning', 'var(--s7)', 'M-4.5 -4H4.5L0 5Z'],
  slow: ['slow host', 'var(--s1)'], phase: ['phase', 'var(--s9)'],
};
class TimeLine {
  constructor(run, title) {
    this.run = run;
    this.at = -1;
    const id = newId(), sum = newId();
    this.live = el('p', {class: 'sr', 'aria-live': 'polite'});
    this.read = el('div', {class: 'read', 'aria-hidden': 'true'});
    this.sum = el('p', {class: 'sum', id: sum});
    this.plot = el('div', {class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'time line', 'aria-labelledby': id, 'aria-describedby': sum,
      onkeydown: e => this.key(e), onpointermove: e => this.move(e), onpointerdown: e => this.move(e),
      onpointerleave: () => { this.at = -1; this.drawCursor(); }, onblur: () => { this.at = -1; this.drawCursor(); }});
    this.root = el('section', {class: 'chart'}, el('h3', {id}, title), this.read, this.plot, this.sum, this.live);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    view.charts.push(this);
  }
  draw() {
    const width = this.plot.clientWidth, run = this.run;
    if (!width) return;
    const narrow = width < 520, left = narrow ? 84 : 130, right = width - 8, row = 20;
    const r = view.axis === 't' ? range() : [0, Math.max(...report.runs.map(x => x.time_s || 0)) || 1];
    const sx = v => left + (v - r[0]) / (r[1] - r[0]) * (right - left);
    const steps = 46, height = steps + row * (1 + run.lanes.length) + 26, clip = newId();
    const root = svg('svg', {height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true'});
    root.append(svg('clipPath', {id: clip}, svg('rect', {x: left - 5, y: 0, width: right - left + 12, height})));
    const hatch = newId();
    root.append(svg('pattern', {id: hatch, width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'}, svg('rect', {width: 5, height: 5, fill: 'var(--s1)', opacity: .35}), svg('rect', {width: 2, height: 5, fill: 'var(--s1)'})));
    const body = svg('g', {'clip-path': `url(#${clip})`});
    const label = (y, text) => root.append(svg('text', {x: left - 10, y: y + 4, 'text-anchor': 'end'}, text.length > (narrow ? 13 : 20) ? text.slice(0, narrow ? 12 : 19) + '…' : text));
    this.points = [];
    // The steps over time, and those that were lost.
    const p = run.progress, most = Math.max(1, ...(p.step || []), ...run.lost.map(l => l.to));
    const sy = v => steps - 4 - v / most * (steps - 10);
    let d = '', last = null;
    (p.step || []).forEach((s, i) => { d += (d ? 'L' : 'M') + sx(p.t[i]).toFixed(1) + ' ' + sy(s).toFixed(1); });
    label(steps / 2, 'steps');
    for (const l of run.lost) body.append(svg('path', {d: 'M' + l.t.map((t, i) => sx(t).toFixed(1) + ' ' + sy(l.step[i]).toFixed(1)).join('L'), fill: 'none', stroke: 'var(--bad)', 'stroke-width': 1.4, 'stroke-dasharray': '2 2'}));
    body.append(svg('path', {d, fill: 'none', stroke: 'var(--a)', 'stroke-width': 1.4}));
    // Launches
    let y = steps + row / 2;
    label(y, run.launches.length > 1 ? 'launches' : 'launch');
    run.launches.forEach((l, i) => {
      const x0 = sx(l.t0), x1 = Math.max(sx(l.t1), x0 + 2), ends = l.status ? (l.status === 'OK' ? 'done' : l.status === 'CANCELLED' ? 'stopped' : 'failed') : i + 1 < run.launches.length || run.state.kind === 'killed' ? 'killed' : 'running';
      const color = {done: 'var(--good)', stopped: 'var(--soft)', running: 'var(--busy)'}[ends] || 'var(--bad)';
      body.append(svg('rect', {x: x0, y: y - 6, width: Math.max(1, x1 - x0 - 2), height: 12, rx: 2, fill: color, opacity: .28}), svg('rect', {x: x0, y: y - 6, width: 3, height: 12, fill: color}));
      if (x1 - x0 > 60) body.append(svg('text', {x: x0 + 7, y: y + 4}, `${i + 1}: ${ends}`));
      for (const g of l.generations.slice(1)) body.append(svg('line', {x1: sx(g[0]), x2: sx(g[0]), y1: y - 6, y2: y + 6, stroke: 'var(--panel)', 'stroke-width': 2}));
      this.points.push({t: l.t0, y, text: `launch ${i + 1}${l.began ? ', began ' + new Date(l.began * 1000).toISOString().slice(0, 16).replace('T', ' ') + ' UTC' : ''}, took ${time(l.t1 - l.t0)}: ${ends}`});
      if (i) body.append(svg('line', {x1: x0, x2: x0, y1: 0, y2: height - 22, stroke: 'var(--line)'}));
    });
    const used = new Set();
    for (const lane of run.lanes) {
      y += row;
      label(y, lane.name + (lane.host && !narrow ? ' on ' + lane.host : ''));
      root.append(svg('line', {x1: left, x2: right, y1: y + row / 2, y2: y + row / 2, stroke: 'var(--grid)'}));
      for (const [t0, t1, kind, text] of lane.spans) {
        used.add(kind);
        body.append(svg('rect', {x: sx(t0), y: y - 5, width: Math.max(2, sx(t1) - sx(t0)), height: 10, rx: 1.5, fill: kind === 'slow' ? `url(#${hatch})` : KINDS[kind][1], opacity: kind === 'slow' ? 1 : .5}));
        this.points.push({t: t0, y, text: `${KINDS[kind][0]}: ${text}, ${time(t1 - t0)}`});
      }
      for (const [t, kind, text] of lane.marks) {
        used.add(kind);
        body.append(svg('path', {d: KINDS[kind][2], transform: `translate(${sx(t).toFixed(1)} ${y})`, fill: KINDS[kind][1], stroke: kind === 'called_off' ? KINDS[kind][1] : 'var(--panel)', 'stroke-width': kind === 'called_off' ? 2 : .8}));
        this.points.push({t, y, text: `${KINDS[kind][0]}${text ? ': ' + text : ''}`});
      }
    }
    drawAxis(root, r, sx, left, right, height - 22, 't');
    this.points = this.points.filter(q => q.t >= r[0] && q.t <= r[1]).sort((a, b) => a.t - b.t || a.y - b.y);
    this.sx = sx;
    this.over = svg('g', {});
    root.append(body, this.over);
    this.plot.replaceChildren(root);
    this.used = used;
    const c = run.event_counts || {}, n = (k, one, many) => c[k] ? [`${group(c[k])} ${c[k] === 1 ? one : many || one + 's'}`] : [];
    const lost = run.lost.reduce((a, l) => a + l.to - l.from, 0);
    this.sum.textContent = [`${run.launches.length} launch${run.launches.length === 1 ? '' : 'es'} in ${time(run.time_s)}`, ...n('server_restart', 'server restart'), ...n('rollback', 'rollback'),
      ...(lost ? [`${group(lost)} steps made again`] : []), ...n('eval', 'evaluation'), ...n('checkpoint', 'checkpoint'), ...n('slow_host', 'note of a slow host', 'notes of slow hosts'), ...n('warning', 'warning')].join(', ') + '.' +
      (run.lanes_left_out ? ` ${run.lanes_left_out} more lanes are left out.` : '') + (run.launches.length > 1 ? ' The pauses between launches are left out of the axis.' : '');
    this.drawCursor();
  }
  drawCursor() {
    if (!this.over) return;
    this.over.replaceChildren();
    const p = this.points[this.at];
    if (p) {
      this.over.append(svg('circle', {cx: this.sx(p.t), cy: p.y, r: 8.5, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 1.5}));
      this.read.replaceChildren(el('b', {}, time(p.t)), el('span', {style: {whiteSpace: 'normal'}}, p.text));
    } else this.read.replaceChildren(...[...this.used].map(k => el('span', {}, svgKey(k), KINDS[k][0])));
  }
  key(e) {
    const by = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity}[e.key];
    if (by === undefined || !this.points.length || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    this.at = Math.max(0, Math.min(this.points.length - 1, this.at + by));
    this.drawCursor();
    this.live.textContent = `${time(this.points[this.at].t)}: ${this.points[this.at].text}`;
  }
  move(e) {
    const box = this.plot.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
    let best = 14 ** 2, at = -1;
    this.points.forEach((p, i) => { const d = (this.sx(p.t) - x) ** 2 + (p.y - y) ** 2; if (d < best) { best = d; at = i; } });
    if (at !== this.at) { this.at = at; this.drawCursor(); }
  }
}
function svgKey(kind) {
  return svg('svg', {width: 12, height: 12, viewBox: '-6 -6 12 12', style: {width: '12px', display: 'inline-block', verticalAlign: '-2px', marginRight: '3px'}},
    KINDS[kind][2] ? svg('path', {d: KINDS[kind][2], fill: KINDS[kind][1], stroke: kind === 'called_off' ? KINDS[kind][1] : 'none', 'stroke-width': 2}) : svg('rect', {x: -6, y: -3.5, width: 12, height: 7, fill: KINDS[kind][1], opacity: kind === 'slow' ? 1 : .5}));
}

// A table that sorts by its columns. columns: [{name, key, form, text, share}], data: arrays by key.
function sortable(caption, columns, data, {first = 14, span = 12, order = null, main = null} = {}) {
  const n = (data[columns[0].key] || []).length;
  if (!n) return null;
  columns = columns.filter(c => c.always || (data[c.key] || []).some(v => v != null && v !== '' && v !== 0));
  let by = columns.find(c => c.key === order), up = false, all = false;
  const head = el('tr'), body = el('tbody'), more = el('button', {class: 'more', onclick: () => { all = !all; fill(); }});
  const fill = () => {
    const rows = [...Array(n).keys()].filter(i => all || !main || main(i));
    if (by) rows.sort((a, b) => { const x = data[by.key][a], y = data[by.key][b]; if (x == null || y == null) return (x == null) - (y == null); return (up ? 1 : -1) * (by.text ? String(x).localeCompare(String(y), 'en', {numeric: true}) : x - y); });
    head.replaceChildren(...columns.map(c => el('th', {scope: 'col', class: c.text ? 'text' : null, 'aria-sort': by === c ? (up ? 'ascending' : 'descending') : null},
      el('button', {title: c.title, onclick: () => { up = by === c ? !up : !!c.text; by = c; fill(); head.children[columns.indexOf(c)].firstChild.focus(); }}, c.name))));
    body.replaceChildren(...rows.slice(0, all ? n : first).map(i => el('tr', {}, columns.map((c, k) => {
      const v = data[c.key][i], text = v == null || v === '' ? '' : c.form ? c.form(v) : String(v);
      const share = c.share && v ? Math.min(100, 100 * v / (c.most || Math.max(...data[c.key].filter(x => x != null)))) : null;
      return el(k ? 'td' : 'th', {scope: k ? null : 'row', class: (c.text ? 'text ' : '') + (c.long ? 'long ' : '') + (share ? 'share' : ''), style: share ? {backgroundSize: share.toFixed(1) + '% 74%'} : {}}, text);
    }))));
    more.textContent = all ? 'Show fewer' : `Show all ${group(n)}`;
    more.hidden = !all && n === Math.min(rows.length, first);
  };
  fill();
  return el('div', {class: 'chart c' + span}, el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption, style: {maxHeight: '40rem'}},
    el('table', {}, el('caption', {}, caption), el('thead', {}, head), body)), more);
}

// Sections

const many = () => report.runs.length > 1;
const named = (i, name) => many() ? `${report.runs[i].label}${name ? ' ' + name : ''}` : name;
// x of points that have steps (and times), by the progress lines around them.
function samplesAt(run, steps) {
  const p = run.progress, xs = p.step || [];
  return steps.map(s => {
    const i = nearest(xs, s);
    return i < 0 || !xs[i] || !p.samples || p.samples[i] == null ? null : p.samples[i] * s / xs[i];
  });
}
function lines(figure, name, extra) {
  return report.runs.flatMap((run, i) => {
    const p = run.progress, y = p.mean && p.mean[figure];
    if (!y) return [];
    return [{name: named(i, name), run: i, x: p, y, lo: p.min && p.min[figure], hi: p.max && p.max[figure], ...extra}];
  });
}
function evaluations(figure, name, extra) {
  return report.runs.flatMap((run, i) => {
    const e = run.evals;
    if (!e.step.length || !(e[figure] || []).some(v => v != null)) return [];
    return [{name: named(i, name), run: i, x: {step: e.step, t: e.t, samples: samplesAt(run, e.step)}, y: e[figure], dots: true, best: e.is_best, ...extra}];
  });
}
// Of a run with several tasks each has a line, in a colour of its own.
const TASK_COLORS = ['--s0', '--s5', '--s1', '--s6', '--s8', '--s3'];
function tasksOf(run) {
  return Object.keys(run.progress.mean || {}).filter(n => n.startsWith('loss of ')).map(n => n.slice(8));
}
function ofTasks(series, figure, name, extra) {
  const tasks = [...new Set(report.runs.flatMap(tasksOf))];
  return tasks.flatMap((task, k) => series(`${figure} of ${task}`, `${task}, ${name}`, {...extra, color: `var(${TASK_COLORS[k % TASK_COLORS.length]})`}));
}
function ofRunsOrTasks(series, figure, name, extra) {
  return [...series(figure, name, extra).filter(s => !tasksOf(report.runs[s.run]).length), ...ofTasks(series, figure, name, extra)];
}
function lost(figure) {
  if (view.axis !== 't') return [];
  return report.runs.flatMap((run, i) => run.lost.map(l => ({name: 'lost', lost: true, run: i, x: l, y: l[figure]})));
}
function marks() {
  return report.runs.flatMap(run => run.launches.slice(1).map(l => ({x: {t: l.t0, step: l.generations[0][1]}, text: 'resumed'})));
}
const STAGES = ['wait for data', 'wait for rows', 'forward', 'backward to embeddings', 'update rows', 'push embeddings', 'backward dense', 'dense update', 'push dense', 'report'];
const STAGE_COLORS = ['--s1', '--s0', '--s2', '--s3', '--s4', '--s5', '--s6', '--s7', '--s8', '--s9', '--s10'];
function stages(i) {
  const run = report.runs[i], p = run.progress;
  const names = Object.keys(p.mean || {}).filter(n => n.startsWith('stage ') && !n.endsWith('(ahead)')).map(n => n.slice(6));
  const order = n => STAGES.indexOf(n) < 0 ? 99 : STAGES.indexOf(n);
  names.sort((a, b) => order(a) - order(b));
  return names.filter(n => p.mean['stage ' + n].some(v => v > 0)).map(n => ({name: n, run: i, x: p, y: p.mean['stage ' + n], color: `var(${STAGE_COLORS[Math.min(order(n), 10)]})`}));
}
function traffic(figure, name) {  // Of all workers where they are added up, else of worker 0.
  return report.runs.flatMap((run, i) => {
    const w = run.workers_series, p = w && w.mean && w.mean[figure] ? w : run.progress;
    const y = p.mean && p.mean[figure];
    if (!y) return [];
    const x = p === w ? {step: w.step, t: w.t, samples: samplesAt(run, w.step)} : p;
    return [{name: named(i, name), run: i, x, y, lo: p.min && p.min[figure], hi: p.max && p.max[figure]}];
  });
}

// Every chart with the function that gives its series, so that new figures of a live job need no new elements.
let sections = [];
function chart(options, series) {
  const c = new Chart({...options, series: series()});
  sections.push(() => { c.series = series(); c.marks = marks(); });
  c.marks = marks();
  return c.root;
}
function head(run, i) {
  const s = run.state, [first, ...rest] = String(s.why || '').split('\n');
  return el('div', {class: 'why'},
    el('p', {}, many() ? el('b', {}, keyOf({run: i}), run.label, ': ') : null, el('b', {}, s.title), ': ', first.replace(/[.:]$/, ''),
      run.launches.length > 1 ? `. ${run.launches.length} launches.` : '.'),
    rest.length ? el('details', {}, el('summary', {}, 'All of the reason'), el('pre', {}, s.why)) : null,
    el('ul', {class: 'next'}, s.next.map(([text, command]) => el('li', {}, text, command ? ': ' : '.', command ? el('code', {}, command) : null))),
    run.notes.map(n => el('p', {class: 'note'}, n)));
}
function figures(run) {
  if (!run.figures.length) return null;
  return el('dl', {class: 'figures'}, run.figures.map(([name, text, note]) => el('div', {class: text.length > 16 ? 'wide' : null}, el('dt', {}, name), el('dd', {title: text}, text, note ? el('small', {title: note}, note) : null))));
}
function ratio(a, b) {
  const value = t => /^-?[\d,.]+%?$/.test(t || '') ? parseFloat(t.replace(/,/g, '')) : NaN;
  const x = value(a), y = value(b);
  if (!isFinite(x) || !isFinite(y) || x === y) return '';
  const d = y - x;
  return (d > 0 ? '+' : '−') + num(Math.abs(+d.toPrecision(4))) + (Math.abs(x) >= 100 ? ` (${d > 0 ? '+' : '−'}${Math.abs(100 * d / x).toFixed(1)}%)` : '');
}
function sideBySide() {
  const c = report.compare, [a, b] = report.runs.map(r => r.label);
  const heads = (first, ...rest) => el('thead', {}, el('tr', {}, el('th', {scope: 'col', class: 'text'}, first), el('th', {scope: 'col'}, keyOf({run: 0}), a), el('th', {scope: 'col'}, keyOf({run: 1}), b), rest.map(r => el('th', {scope: 'col'}, r))));
  const row = ([name, x, y], last) => el('tr', {class: x === y ? 'same' : 'differs'}, el('th', {scope: 'row', class: 'text'}, name), el('td', {class: 'cut', title: x}, x == null ? '–' : x), el('td', {class: 'cut', title: y}, y == null ? '–' : y), last ? el('td', {}, ratio(x, y)) : null);
  return el('div', {class: 'grid', style: {marginTop: '.9rem'}},
    el('div', {class: 'chart c6'}, el('h3', {}, 'Figures'), el('div', {class: 'scroll', style: {maxHeight: 'none'}}, el('table', {}, heads('', 'difference'), el('tbody', {}, c.figures.map(f => row(f, true)))))),
    el('div', {class: 'chart c6'}, el('h3', {}, c.num_fields == null ? 'One of the jobs can’t be read: they are not compared' : c.fields.length ? `Differing fields of the jobs (${c.num_fields})` : 'The jobs do not differ'),
      c.fields.length ? el('div', {class: 'scroll'}, el('table', {}, heads('field'), el('tbody', {}, c.fields.map(f => row(f))))) : null));
}
// Tables with equal settings take one line each: job files of many tables are long for nothing.
function foldJob(text) {
  const blocks = text.split(/(?=^table \{$)/m), seen = new Map();
  return blocks.map(block => {
    const end = block.indexOf('\n}\n'), name = /^ {2}name: "([^"]*)"\n/m.exec(block);
    if (!block.startsWith('table {') || end < 0 || !name) return block;
    const rest = block.slice(end + 3), settings = block.slice(0, end).replace(name[0], '');
    if (seen.has(settings)) return `table { name: "${name[1]}" }  # settings as of "${seen.get(settings)}"\n` + rest;
    seen.set(settings, name[1]);
    return block;
  }).join('');
}
function runTables(run, i) {
  const t = run.tables, p = run.processes, e = run.events, out = [];
  out.push(sortable(named(i, `${t.name.filter(n => n !== 'dense parameters').length} tables, summed over ${p.num_servers} servers`), [
    {name: 'table', key: 'name', text: true, always: true}, {name: 'dim', key: 'dim'}, {name: 'rows', key: 'rows', form: group, share: true}, {name: 'bytes', key: 'bytes', form: bytes, share: true},
    {name: 'spilled', key: 'spilled', form: bytes, title: 'bytes on disk, beyond memory'}, {name: 'skew', key: 'skew', form: v => v.toFixed(2), title: 'rows of the fullest server, over their mean; 1 is even'},
    {name: 'forgotten', key: 'forgotten', form: group, title: 'rows forgotten, and gradients dropped, of rare keys'}], t, {span: many() ? 6 : 12}));
  out.push(sortable(named(i, p.servers.name.length < p.num_servers ? `${p.servers.name.length} of ${p.num_servers} servers: those with the most rows, and the slowest` : many() ? 'servers' : 'Servers'), [
    {name: 'server', key: 'name', text: true, always: true}, {name: 'host', key: 'host', text: true}, {name: 'rows', key: 'rows', form: group, share: true}, {name: 'process', key: 'bytes', form: bytes},
    {name: 'pull p50', key: 'pull_p50', form: micros}, {name: 'pull p99', key: 'pull_p99', form: micros}, {name: 'push p99', key: 'push_p99', form: micros}, {name: 'refused', key: 'refused', form: group}, {name: '', key: 'note', text: true}], p.servers, {span: 6}));
  out.push(sortable(named(i, p.workers.name.length < p.num_workers ? `${p.workers.name.length} of ${p.num_workers} workers: those that waited longest` : many() ? 'workers' : 'Workers'), [
    {name: 'worker', key: 'name', text: true, always: true}, {name: 'host', key: 'host', text: true}, {name: 'samples', key: 'samples', form: group}, {name: 'samples/s', key: 'samples_per_s', form: group}, {name: 'process', key: 'bytes', form: bytes},
    {name: 'waited for others', key: 'waited_s', form: time}, {name: 'retries', key: 'retries', form: group}, {name: 'device', key: 'device', text: true}, {name: '', key: 'note', text: true, long: true}], p.workers, {span: 6}));
  return out;
}
// Of two runs, the tables of the same kind stand side by side.
const byKind = lists => lists[0].flatMap((_, k) => lists.map(list => list[k])).filter(Boolean);
// What a budget of device memory for hot rows is worth: shares of all lookups and samples, over the budget.
class BudgetCurve {
  constructor(curve, title) {
    this.curve = curve;
    this.plot = el('div', {class: 'plot', style: {cursor: 'auto'}});
    const lines = this.lines(), rows = curve.budget_bytes.map((b, i) => el('tr', {}, el('th', {scope: 'row'}, bytes(b)), el('td', {}, group(curve.hot_rows[i] || 0)), lines.map(s => el('td', {}, percent(s.y[i])))));
    const at = i => `${bytes(curve.budget_bytes[i])}: ${percent(curve.lookup_share[i])} of the lookups`;
    this.root = el('section', {class: 'chart c6'}, el('h3', {}, title), el('div', {class: 'read', 'aria-hidden': 'true'}, lines.map(s => el('span', {}, keyOf(s), s.name))), this.plot,
      el('details', {}, el('summary', {title: 'as a table'}, el('span', {class: 'sr'}, 'Table. '), el('span', {class: 'sum'}, `${at(0)}; ${at(rows.length - 1)}.`)),
        el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': title}, el('table', {}, el('thead', {}, el('tr', {}, ['budget', 'hot rows', ...lines.map(s => s.name)].map(n => el('th', {scope: 'col'}, n)))), el('tbody', {}, rows)))));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }
  lines() {
    return [{name: 'lookups of hot rows', run: 0, y: this.curve.lookup_share}, {name: 'samples of hot rows alone', run: 1, y: this.curve.sample_share}].filter(s => s.y.some(v => v != null));
  }
  draw() {
    const width = this.plot.clientWidth, height = 170, left = 44, right = width - 14, bottom = height - 22;
    if (!width) return;
    const xs = this.curve.budget_bytes.map(b => Math.log2(Math.max(1, b))), lo = Math.min(...xs), hi = Math.max(...xs);
    const sx = x => hi > lo ? left + 16 + (x - lo) / (hi - lo) * (right - left - 32) : (left + right) / 2, sy = v => 8 + (1 - v) * (bottom - 8);
    const root = svg('svg', {height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true'});
    for (const v of [0, .25, .5, .75, 1]) root.append(svg('line', {x1: left, x2: right, y1: sy(v), y2: sy(v), stroke: 'var(--grid)'}), svg('text', {x: left - 6, y: sy(v) + 4, 'text-anchor': 'end'}, 100 * v + '%'));
    let free = -Infinity;
    xs.forEach((x, i) => {
      if (sx(x) - 30 < free) return;
      free = sx(x) + 34;
      root.append(svg('text', {x: sx(x), y: bottom + 16, 'text-anchor': 'middle'}, bytes(this.curve.budget_bytes[i])));
    });
    for (const s of this.lines()) {
      const color = s.run ? 'var(--b)' : 'var(--a)';
      root.append(svg('path', {d: xs.map((x, i) => `${i ? 'L' : 'M'}${sx(x).toFixed(1)} ${sy(s.y[i] || 0).toFixed(1)}`).join(''), fill: 'none', stroke: color, 'stroke-width': 1.6, 'stroke-dasharray': s.run ? '6 3' : null}));
      xs.forEach((x, i) => root.append(svg('circle', {cx: sx(x), cy: sy(s.y[i] || 0), r: 3, fill: 'var(--panel)', stroke: color, 'stroke-width': 1.5})));
    }
    this.plot.replaceChildren(root);
  }
}
function foundInData(run, i) {
  const f = run.found || {}, columns = f.columns || {name: []}, hot = f.hot_tables || {name: []};
  return [f.curve ? new BudgetCurve(f.curve, named(i, many() ? 'hot rows by budget' : 'Hot rows by their budget (calibrate)')).root : null,
    sortable(named(i, many() ? 'hot rows by table' : 'Hot rows by table'), [{name: 'table', key: 'name', text: true, always: true}, {name: 'rows seen', key: 'rows', form: group}, {name: 'hot rows', key: 'hot_rows', form: group, share: true}, {name: 'of its lookups', key: 'lookup_share', form: percent, share: true, most: 1}], hot, {span: 6}),
    sortable(named(i, many() ? 'skew of the log’s columns' : 'Skew of the log’s columns (inspect)'), [{name: 'column', key: 'name', text: true, always: true}, {name: 'distinct', key: 'distinct', form: group}, {name: 'top 1%', key: 'top_share', form: percent, share: true, most: 1, title: 'the share of lookups that the most frequent 1% of the ids take'},
      {name: 'once', key: 'once_share', form: percent, share: true, most: 1, title: 'the share of ids that occur once'}], columns, {span: 6})];
}
function eventList(run, i) {
  const e = run.events;
  return sortable(named(i, many() ? 'events' : 'Events, the newest first'), [{name: 'time', key: 't', form: time, always: true}, {name: 'event', key: 'kind', text: true}, {name: '', key: 'text', text: true, long: true}],
    {t: e.map(x => x[0]), kind: e.map(x => x[1].replace(/_/g, ' ')), text: e.map(x => x[2])}, {first: 12, span: many() ? 6 : 12, order: 't', main: i => !['eval', 'checkpoint', 'phase'].includes(e[i][1])});
}

let controls = null, folded = [];
function drawControls() {
  if (!controls) return;
  for (const b of controls.axes) b.setAttribute('aria-pressed', b.dataset.axis === view.axis);
  controls.reset.disabled = !view.range && !view.latest;
  controls.latest.setAttribute('aria-pressed', view.latest);
}
function setAxis(axis) {
  view.axis = axis;
  view.range = view.cursor = null;
  for (const refresh of sections) refresh();
  redraw();
}
const keep = {};  // What a live page's redrawn parts had open.
function build() {
  const app = document.getElementById('app');
  view.charts = []; sections = [];
  const runs = report.runs;
  const axes = Object.entries(AXES).map(([k, a]) => el('button', {'data-axis': k, 'aria-pressed': k === view.axis, onclick: () => setAxis(k)}, a.name));
  const reset = el('button', {onclick: () => setRange(null)}, 'Whole run'), latest = el('button', {onclick: () => { view.range = null; view.latest = !view.latest; redraw(); }}, 'Last fifth');
  controls = {axes, reset, latest, lost: el('span', {class: 'hint', role: 'status'}), names: el('div', {class: 'names'}), meter: el('div', {class: 'meter', hidden: true}, el('i'))};
  const top = el('div'), tables = el('div'), events = el('div');
  const hasLines = runs.some(r => (r.progress.step || []).length);
  const parts = [top];
  if (hasLines || report.live) {
    const learning = el('div', {class: 'grid'},
      chart({title: 'Loss', form: fixed, tick: exact, height: 230, span: 5}, () => [...lost('loss'), ...lines('loss', 'training', {faint: false}),
        ...ofTasks(lines, 'loss', 'training', {faint: true}), ...ofRunsOrTasks(evaluations, 'logloss', 'held-out')]),
      chart({title: 'AUC', form: fixed, tick: exact, height: 230, span: 5, empty: 'No AUC yet.'},
        () => [...ofRunsOrTasks(lines, 'auc', 'last batch', {faint: true}), ...ofRunsOrTasks(evaluations, 'auc', 'held-out')]),
      chart({title: 'Learning rate', form: exact, tick: exact, height: 230, span: 2, zero: true}, () => lines('learning_rate', many() ? '' : 'rate')));
    const speed = el('div', {class: 'grid'},
      chart({title: 'Samples per second', form: group, tick: si, height: many() ? 210 : 246, span: 4, zero: true}, () => [...lost('samples_per_s'), ...lines('samples_per_s', many() ? '' : 'samples/s')]),
      runs.map((r, i) => chart({title: 'Where a step’s time goes' + (many() ? ': ' + r.label : ''), form: micros, height: 210, span: many() ? 4 : 8, stack: true}, () => stages(i))));
    const small = [['bytes_pulled', 'Bytes pulled a step', bytes], ['bytes_pushed', 'Bytes pushed a step', bytes], ['bytes_exchanged', 'Bytes exchanged a step', bytes],
      ['hit_rate', 'Cache hit rate', percent, 1], ['slowest_share', 'Time waited for the slowest worker', percent, 1]].filter(f => traffic(f[0]).length);
    const spans = {1: [12], 2: [6, 6], 3: [4, 4, 4], 4: [3, 3, 3, 3], 5: [4, 4, 4, 6, 6]}[small.length];
    const bytesGrid = el('div', {class: 'grid'}, small.map(([figure, title, form, most], k) => chart({title, form, height: 150, span: spans[k], zero: true, most}, () => traffic(figure, many() ? '' : 'mean'))));
    parts.push(el('h2', {}, 'Learning'), learning, el('h2', {}, 'Speed'), speed, small.length ? el('h2', {}, 'Traffic and cache') : null, bytesGrid,
      el('p', {class: 'hint keys'}, 'Drag over a chart to look closer, double-click for the whole run. With the keyboard: Tab to a chart, arrows move the cursor (Shift: ten points), + and − zoom, 0 shows the whole run.'));
  }
  if (runs.some(r => r.launches.length)) parts.push(el('h2', {}, 'What happened'), el('div', {class: 'grid'}, runs.map((r, i) => {
    const line = new TimeLine(r, many() ? r.label : 'Time line');
    sections.push(() => { line.run = report.runs[i]; });
    return line.root;
  })), events);
  parts.push(tables);
  const found = runs.flatMap(foundInData).filter(Boolean);
  if (found.length) parts.push(el('h2', {}, 'What is in the data'), el('div', {class: 'grid'}, found));
  const jobs = runs.filter(r => r.job.text);
  if (jobs.length) parts.push(el('h2', {}, 'The job'), jobs.map(r => el('details', {class: 'panel'}, el('summary', {}, `${many() ? r.label + ': ' : ''}job.textproto, with all defaults`), el('pre', {class: 'job', tabindex: 0}, foldJob(r.job.text)))));
  app.replaceChildren(el('header', {class: 'bar'}, el('div', {class: 'in'}, controls.names, controls.lost, hasLines || report.live ? [el('div', {class: 'seg', role: 'group', 'aria-label': 'what is shown'}, reset, latest), el('div', {class: 'seg', role: 'group', 'aria-label': 'horizontal axis'}, axes)] : null), controls.meter),
    el('main', {}, parts.filter(Boolean)));
  sections.push(() => {
    document.title = runs.map(r => `${many() ? r.label : r.job.name}: ${r.state.title}`).join(', ');
    controls.names.replaceChildren(...report.runs.map((r, i) => el('div', {class: 'name'}, el('h1', {}, many() ? keyOf({run: i}) : null, many() ? r.label : r.job.name), el('span', {class: 'state ' + r.state.kind}, r.state.title))));
    const run = report.runs[0], busy = !many() && run.state.kind === 'running' && run.fraction != null;
    controls.meter.hidden = !busy;
    if (busy) controls.meter.firstChild.style.width = 100 * run.fraction + '%';
    refill(top, [...report.runs.map(head), many() ? sideBySide() : figures(report.runs[0])].filter(Boolean));
    const list = byKind(report.runs.map(runTables));
    refill(tables, list.length ? [el('h2', {}, 'Tables and processes'), el('div', {class: 'grid'}, list)] : []);
    refill(events, [el('div', {class: 'grid', style: {marginTop: '.8rem'}}, report.runs.map(eventList))]);
  });
  for (const refresh of sections) refresh();
  redraw();
}
// A live page's lists are made anew only while nobody is in them.
function refill(part, children) {
  if (part.contains(document.activeElement) || (part.childElementCount && part.matches(':hover'))) return;
  part.replaceChildren(...children);
}

// The live document: every two seconds what has changed since the cursor.

function splice(series, tail) {
  const put = (to, from) => { for (const k in from) { if (Array.isArray(from[k])) { to[k] = (to[k] || new Array(tail.from).fill(null)).slice(0, tail.from).concat(from[k]); } } };
  put(series, tail);
  for (const part of ['mean', 'min', 'max']) if (tail[part]) put(series[part] = series[part] || {}, tail[part]);
}
function merge(answer) {
  if (answer.schema) { report = answer; return true; }  // The whole document.
  report.cursor = answer.cursor;
  report.live = answer.live;
  const run = report.runs[0];
  for (const [k, v] of Object.entries(answer.run || {})) {
    if (k === 'progress_tail') splice(run.progress, v);
    else if (k === 'workers_series_tail') splice(run.workers_series = run.workers_series || {mean: {}}, v);
    else run[k] = v;
  }
  return false;
}
async function follow() {
  let since = Date.now();
  for (;;) {
    await new Promise(done => setTimeout(done, document.hidden ? 10000 : 2000));
    try {
      const answer = await fetch('api/job' + (report.cursor ? '?cursor=' + encodeURIComponent(report.cursor) : ''), {credentials: 'same-origin', cache: 'no-store'});
      if (answer.status === 200) {
        if (merge(await answer.json())) build();
        else { for (const refresh of sections) refresh(); redraw(); }
      } else if (answer.status !== 204) throw new Error(answer.status === 401 || answer.status === 403 ? 'the token is not accepted' : 'status ' + answer.status);
      since = Date.now();
      controls.lost.textContent = '';
      if (!report.live) return;
    } catch (e) {
      controls.lost.textContent = `No answer for ${time((Date.now() - since) / 1000)}${/token|status/.test(e.message) ? ' (' + e.message + ')' : ''}; the page shows what was known then.`;
    }
  }
}
report = JSON.parse(document.getElementById('report').textContent);
try {
  build();
} catch (error) {  // A defect of this page: the tables are there all the same.
  document.getElementById('app').innerHTML = document.querySelector('noscript').textContent;
  throw error;
}
if (report.live) follow();
