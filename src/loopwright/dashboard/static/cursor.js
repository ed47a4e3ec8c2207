// One cursor for all charts: the value of x that the pointer (or the arrow keys) is at.

const listeners = new Set();

export const cursor = {
  x: null, // in units of x, or null
  source: null, // the chart that the pointer is in
  isPinned: false, // stays where it is until it is let go

  set(x, source = null) {
    if (cursor.isPinned || (x === cursor.x && source === cursor.source)) return;
    cursor.x = x;
    cursor.source = source;
    for (const listener of listeners) listener();
  },

  pin(isPinned = !cursor.isPinned) {
    cursor.isPinned = isPinned && cursor.x !== null;
    for (const listener of listeners) listener();
  },

  listen(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
