/**
 * Plots of figures over time (uPlot), with a legend that shows the values under the pointer, a sentence for screen
 * readers, and the figures as a table.
 *
 * The colours are the tokens of the theme, read at each drawing, so that a change of the theme needs no new plot.
 */

import { html, nothing } from '../../vendor/lit-html-3.3.3/lit-html.js';
import uPlot from '../../vendor/uplot-1.6.32/uPlot.esm.js';
import { addTexts, t } from '../../app/text.js';
import { dayTime } from '../../app/format.js';
import texts from './plot.text.js';

addTexts(texts);

const HEIGHT = 168;
const TABLE_ROWS = 12;
const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4]];

/** Steps of an axis that read well, by the unit of its values. */
const STEPS = {
  number: undefined,
  seconds: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000],
  bytes: Array.from({ length: 52 }, (_, power) => 2 ** power),
};

/** The colour of a token, such as `accent` or `state-active`. A canvas knows no tokens, and an element resolves them. */
function colour(token) {
  const probe = document.createElement('i');
  probe.style.color = `var(--${token})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** A plot of a page; `close` when the page is left. */
export class Plot {
  /**
   * @param title function that returns the heading in the current language.
   * @param series `[{ name: key of the column, title(), colour: token, fill: true for an area }]`.
   * @param format function of a value: text with its unit.
   * @param unit `number`, `seconds` or `bytes`: the steps of the axis.
   * @param fromZero false for figures whose zero says nothing, such as free space.
   * @param group name of the plots that show the same moment under the pointer.
   * @param onPoint called when the pointer moves to another moment.
   */
  constructor({ title, series, format, unit = 'number', fromZero = true, group, onPoint }) {
    Object.assign(this, { title, series, format });
    this.columns = { times: [], values: series.map(() => []) };
    this.pointed = null;
    this.isTableOpen = false;
    this.element = document.createElement('div');
    this.element.className = 'plot-canvas';
    this.element.setAttribute('role', 'img');
    this.onPoint = onPoint;
    this.chart = null;
    this.options = (width) => this.chartOptions(width, { fromZero, unit, group });
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.element);
    this.theming = new MutationObserver(() => this.chart?.redraw(false));
    this.theming.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme', 'lang'] });
    this.scheme = matchMedia('(prefers-color-scheme: dark)');
    this.onScheme = () => this.chart?.redraw(false);
    this.scheme.addEventListener('change', this.onScheme);
  }

  /** Show these columns: times in seconds, and for each series a value or null per time. */
  show(times, values) {
    this.columns = { times, values };
    this.chart?.setData([times, ...values]);
  }

  /** Free what the browser holds for the plot. */
  close() {
    this.resizing.disconnect();
    this.theming.disconnect();
    this.scheme.removeEventListener('change', this.onScheme);
    this.chart?.destroy();
    this.chart = null;
  }

  /** Return the plot with its heading, legend and alternatives. */
  view(note = nothing) {
    const { times, values } = this.columns;
    const index = this.pointed ?? this.lastIndex();
    this.element.setAttribute('aria-label', this.summary());
    return html`<figure class="card plot">
      <figcaption>
        <h2>${this.title()}</h2>
        <span class="soft number plot-moment">${this.pointed === null ? nothing : dayTime(times[this.pointed])}</span>
        <ul class="plot-legend">
          ${this.series.map(
            (series, number) => html`<li>
              <svg class="plot-swatch ${series.colour}" viewBox="0 0 18 4" aria-hidden="true">
                <path d="M0 2h18" stroke-dasharray=${DASHES[number].map((part) => part * 0.8).join(' ') || nothing} />
              </svg>
              <span>${series.title()}</span>
              <b class="number">${this.shown(values[number]?.[index])}</b>
            </li>`,
          )}
        </ul>
      </figcaption>
      ${this.element}
      ${note === nothing ? nothing : html`<p class="soft plot-note">${note}</p>`}
      <details ?open=${this.isTableOpen} @toggle=${(event) => this.toggle(event.target.open)}>
        <summary>${t('plot.as-table')}<span class="visually-hidden">: ${this.title()}</span></summary>
        ${this.isTableOpen ? this.table() : nothing}
      </details>
    </figure>`;
  }

  /** Return a sentence for each series: the last value, the lowest and the highest. */
  summary() {
    const sentences = this.series.map((series, number) => {
      const known = (this.columns.values[number] ?? []).filter((value) => value !== null);
      if (known.length === 0) {
        return t('plot.no-figures', { name: series.title() });
      }
      const values = {
        name: series.title(),
        last: this.format(known.at(-1)),
        lowest: this.format(Math.min(...known)),
        highest: this.format(Math.max(...known)),
      };
      return t('plot.summary', values);
    });
    return `${this.title()}. ${sentences.join(' ')}`;
  }

  toggle(isOpen) {
    if (isOpen !== this.isTableOpen) {
      this.isTableOpen = isOpen;
      this.onPoint();
    }
  }

  /** Return a dozen moments of the plot as a table, the last first. */
  table() {
    const { times, values } = this.columns;
    const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
    const rows = [];
    for (let index = this.lastIndex(); index >= 0; index -= step) {
      rows.push(index);
    }
    return html`<div class="plot-table" tabindex="0" role="group" aria-label=${this.title()}>
      <table>
        <thead>
          <tr><th scope="col">${t('ui.time')}</th>${this.series.map((series) => html`<th scope="col" class="end">${series.title()}</th>`)}</tr>
        </thead>
        <tbody>
          ${rows.map(
            (index) => html`<tr>
              <th scope="row">${dayTime(times[index])}</th>
              ${this.series.map((_, number) => html`<td class="end">${this.shown(values[number][index])}</td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`;
  }

  shown(value) {
    return value === null || value === undefined ? '–' : this.format(value);
  }

  /** Return the index of the newest moment with a value; -1 without one. */
  lastIndex() {
    const { times, values } = this.columns;
    for (let index = times.length - 1; index >= 0; index -= 1) {
      if (values.some((column) => column[index] !== null)) {
        return index;
      }
    }
    return -1;
  }

  resize() {
    const width = Math.floor(this.element.clientWidth);
    if (width === 0) {
      return;
    }
    if (this.chart === null) {
      this.chart = new uPlot(this.options(width), [this.columns.times, ...this.columns.values], this.element);
    } else if (this.chart.width !== width) {
      this.chart.setSize({ width, height: HEIGHT });
    }
  }

  chartOptions(width, { fromZero, unit, group }) {
    const axis = {
      stroke: () => colour('text-soft'),
      grid: { stroke: () => colour('line'), width: 1 },
      ticks: { show: false },
      font: '11px system-ui, sans-serif',
    };
    return {
      width,
      height: HEIGHT,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: group },
        drag: { x: false, y: false },
        points: { size: 6 },
      },
      scales: { x: { time: true }, y: { range: (_, low, high) => range(low, high, fromZero) } },
      axes: [
        { ...axis, size: 28, space: 64, values: (_, splits) => splits.map((split) => dayTime(split, splits)) },
        { ...axis, size: 64, space: 32, incrs: STEPS[unit], values: (_, splits) => splits.map((split) => this.format(split)) },
      ],
      series: [
        {},
        ...this.series.map((series, number) => ({
          stroke: () => colour(series.colour),
          fill: series.fill ? () => `color-mix(in srgb, ${colour(series.colour)} 12%, transparent)` : undefined,
          width: 1.5,
          dash: DASHES[number],
          points: { show: false },
          spanGaps: false,
        })),
      ],
      hooks: { setCursor: [(chart) => this.point(chart.cursor.idx ?? null)] },
    };
  }

  point(index) {
    if (index !== this.pointed) {
      this.pointed = index;
      this.onPoint();
    }
  }
}

/** Return the ends of the scale of the values, with some room above. */
function range(low, high, fromZero) {
  if (low === null || high === null) {
    return [0, 1];
  }
  if (fromZero) {
    return [0, high > 0 ? high * 1.1 : 1];
  }
  const room = Math.max((high - low) * 0.15, Math.abs(high) * 0.02, 1);
  return [Math.max(0, low - room), high + room];
}
