/* Where things are in two texts: lines, words, and which word comes from which. Places are counted as strings are. */

export const hasSegmenter = typeof Intl.Segmenter === "function";
const SEGMENTS = hasSegmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : { segment: bySpaces };
const LINE_END = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/gu; // where the server cuts, too

/* Words and what is between them, for a browser that does not know better. */
function bySpaces(text) {
  return [...text.matchAll(/[\p{L}\p{M}\p{N}_]+|[^\p{L}\p{M}\p{N}_]+/gu)].map(({ 0: segment, index }) => {
    return { segment, index, isWordLike: /[\p{L}\p{N}]/u.test(segment) };
  });
}

/* The lines of a text, each without the white space around it. */
export function linesOf(text) {
  const lines = [];
  let start = 0;
  const ends = [...text.matchAll(LINE_END)].map((found) => [found.index, found.index + found[0].length]);
  for (const [end, next] of [...ends, [text.length, null]]) {
    const line = text.slice(start, end);
    const from = start + line.length - line.trimStart().length;
    lines.push({ from, to: Math.max(from, start + line.trimEnd().length), end });
    start = next;
  }
  return lines;
}

export function lineAt(text, place) {
  return linesOf(text).findIndex(({ end }) => place <= end);
}

/* Which stretch of the source each token of the translation comes from: [{source: [start, end], target: [start, end]}] */
export function pairsOf(details, source, target) {
  const from = spansOf(details.source_tokens, source);
  const to = spansOf(details.tokens, target);
  return details.alignment
    .filter(([one, other]) => from[one] && to[other])
    .map(([one, other]) => ({ source: from[one], target: to[other] }));
}

/* Where each token stands in its text; null: it is white space, or a part of a character. */
function spansOf(tokens, text) {
  let place = 0;
  return tokens.map((token) => {
    const seen = token.trim();
    const at = seen ? text.indexOf(seen, place) : -1;
    if (at < 0) return null;
    place = at + seen.length;
    return [at, place];
  });
}

/* A translation in pieces, words and what is between them. An elided word (qu', l') stands alone where the model takes
   the rest for a token of its own. */
export function piecesOf(text, pairs) {
  const starts = new Set(pairs.map(({ target }) => target[0]));
  return [...SEGMENTS.segment(text)].flatMap(({ segment, index, isWordLike }) => {
    const last = index + segment.length;
    const after = [...segment.matchAll(/['’]/gu)].map((found) => index + found.index + 1);
    const ends = [...after.filter((at) => at < last && starts.has(at)), last];
    return ends.map((end, place) => ({ start: place ? ends[place - 1] : index, end, isWord: Boolean(isWordLike) }));
  });
}

/* The words of the source that a piece of the translation comes from, as stretches. */
export function originsOf(piece, pairs, source) {
  const own = pairs.filter(({ target }) => target[0] < piece.end && target[1] > piece.start);
  return [...SEGMENTS.segment(source)]
    .map(({ segment, index }) => [index, index + segment.length])
    .filter(([start, end]) => own.some((pair) => pair.source[0] < end && pair.source[1] > start));
}

/* What is shown, with another translation of one line. */
export function withLine(shown, number, translation, details) {
  const [from, to] = [linesOf(shown.text)[number], linesOf(shown.translation)[number]];
  const grown = translation.length - (to.to - to.from);
  const moved = ([start, end], by) => [start + by, end + by];
  const others = shown.pairs
    .filter(({ target }) => target[1] <= to.from || target[0] >= to.to)
    .map(({ source, target }) => ({ source, target: moved(target, target[0] >= to.to ? grown : 0) }));
  const own = pairsOf(details, shown.text.slice(from.from, from.to), translation).map(({ source, target }) => ({
    source: moved(source, from.from),
    target: moved(target, to.from),
  }));
  return {
    ...shown,
    translation: shown.translation.slice(0, to.from) + translation + shown.translation.slice(to.to),
    pairs: [...others, ...own],
  };
}
