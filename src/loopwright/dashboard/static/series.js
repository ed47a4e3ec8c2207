// The columns of one curve on the page: a column stands for `every` points and knows their mean, smallest and largest
// value, so that a spike stays visible however many points are drawn as one.

export class Series {
  /** `curve` is one of the curves that the server sent. */
  constructor(curve) {
    this.run = curve.run;
    this.name = curve.name;
    this.level = curve.level;
    this.every = curve.every;
    this.rows = curve.rows ?? curve.columns.x.length;
    const { x, mean } = curve.columns;
    this.x = x.slice();
    this.mean = mean.slice();
    this.min = (curve.columns.min ?? mean).slice();
    this.max = (curve.columns.max ?? mean).slice();
    this.count = curve.columns.count?.slice() ?? x.map(() => 1);
    this.nonfinite = curve.columns.nonfinite?.slice() ?? x.map(() => 0);
    this.odd = new Map(); // index → "nan" | "inf" | "-inf", where a column is one point
    for (const [index, kind] of Object.entries(curve.odd ?? {})) this.#mark(Number(index), kind);
    this.isOrdered = x.every((place, index) => index === 0 || place >= x[index - 1]); // not so against another metric
    this.end = this.#lastX();
  }

  /** The smallest and the largest x; null without points. */
  get span() {
    if (!this.length) return null;
    return this.isOrdered ? [this.x[0], Math.max(this.end, this.x.at(-1))] : [Math.min(...this.x), Math.max(...this.x)];
  }

  /** Where the last point is: a column's x is the middle of its points. */
  #lastX() {
    if (!this.length) return -Infinity;
    const width = this.length > 1 ? (this.x.at(-1) - this.x.at(-2)) / this.every : 0;
    return this.x.at(-1) + (width * (this.count.at(-1) - 1)) / 2;
  }

  /** Move all points along x. */
  move(by) {
    this.x = this.x.map((x) => x + by);
    this.end += by;
  }

  get length() { return this.x.length; }

  #mark(index, kind) {
    this.odd.set(index, kind);
    this.nonfinite[index] = 1;
  }

  /**
   * Add new points as the server sends them: `{x, value, odd}`; true where there were new ones.
   * With more than twice `limit` columns, two become one.
   */
  append(points, limit) {
    const before = this.rows;
    points.x.forEach((x, index) => {
      if (x > this.end) this.#push(x, points.value[index], points.odd?.[index] ?? null);
    });
    while (this.length > 2 * limit) this.#halve();
    return this.rows > before;
  }

  #push(x, value, odd) {
    this.rows += 1;
    this.end = x;
    const end = this.length - 1;
    if (this.every > 1 && end >= 0 && this.count[end] < this.every) return this.#merge(end, x, value);
    this.x.push(x);
    this.mean.push(value);
    this.min.push(value);
    this.max.push(value);
    this.count.push(1);
    this.nonfinite.push(value === null ? 1 : 0);
    if (value === null && this.every === 1) this.odd.set(end + 1, odd ?? "nan");
  }

  #merge(index, x, value) {
    const finite = this.count[index] - this.nonfinite[index];
    this.x[index] += (x - this.x[index]) / (this.count[index] + 1);
    this.count[index] += 1;
    if (value === null) this.nonfinite[index] += 1;
    else {
      this.mean[index] = finite ? this.mean[index] + (value - this.mean[index]) / (finite + 1) : value;
      this.min[index] = this.min[index] === null ? value : Math.min(this.min[index], value);
      this.max[index] = this.max[index] === null ? value : Math.max(this.max[index], value);
    }
  }

  /** At most `limit` columns: a report holds more than a chart can show. */
  thin(limit) {
    while (this.length > limit) this.#halve();
    return this;
  }

  /** Two columns become one. */
  #halve() {
    const halves = { x: [], mean: [], min: [], max: [], count: [], nonfinite: [] };
    for (let index = 0; index < this.length; index += 2) this.#joinPair(index, halves);
    Object.assign(this, halves);
    this.every *= 2;
    this.odd.clear();
  }

  #joinPair(first, into) {
    const second = first + 1 < this.length ? first + 1 : first;
    const weights = [first, second].map((index) => this.count[index] - this.nonfinite[index]);
    const total = weights[0] + weights[1];
    const pick = (column, choose) => {
      const entries = [column[first], column[second]].filter((entry) => entry !== null);
      return entries.length ? choose(...entries) : null;
    };
    into.x.push((this.x[first] + this.x[second]) / 2);
    into.mean.push(total ? (weights[0] * (this.mean[first] ?? 0) + weights[1] * (this.mean[second] ?? 0)) / total : null);
    into.min.push(pick(this.min, Math.min));
    into.max.push(pick(this.max, Math.max));
    const isAlone = first === second;
    into.count.push(this.count[first] + (isAlone ? 0 : this.count[second]));
    into.nonfinite.push(this.nonfinite[first] + (isAlone ? 0 : this.nonfinite[second]));
  }

  /** The index of the column next to x; -1 where there is none. */
  nearest(x) {
    let low = 0;
    let high = this.length - 1;
    if (high < 0) return -1;
    if (!this.isOrdered) return this.x.reduce((best, place, index) => (Math.abs(place - x) < Math.abs(this.x[best] - x) ? index : best), 0);
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.x[middle] <= x) low = middle;
      else high = middle;
    }
    return Math.abs(this.x[low] - x) <= Math.abs(this.x[high] - x) ? low : high;
  }

  /** What is not finite in a column: "nan", "inf" or "-inf", or null; of many points, a largest value without a number is infinite. */
  oddAt(index) {
    if (this.odd.has(index) || !this.nonfinite[index]) return this.odd.get(index) ?? null;
    if ((this.min[index] === null) === (this.max[index] === null)) return "nan";
    return this.max[index] === null ? "inf" : "-inf";
  }

  /** What is true at a column: `{x, mean, min, max, count, nonfinite, odd}`. */
  at(index) {
    return {
      x: this.x[index], mean: this.mean[index], min: this.min[index], max: this.max[index],
      count: this.count[index], nonfinite: this.nonfinite[index], odd: this.odd.get(index) ?? null,
    };
  }

  /**
   * The running mean in which a point loses half of its weight after `halfLife` points. It counts points, not columns,
   * so thinning does not change how smooth a curve looks.
   */
  smooth(halfLife) {
    let sum = 0;
    let weight = 0;
    return this.mean.map((mean, index) => {
      if (mean === null) return null;
      const decay = 0.5 ** (this.count[index] / halfLife);
      sum = sum * decay + mean * (1 - decay);
      weight = weight * decay + (1 - decay);
      return sum / weight;
    });
  }
}
